#include "tests/compressors/golden_codecs.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {

const std::vector<float>& GoldenCorners() {
  static const std::vector<float> corners = {1.0f,      -2.5f, 0.0f,  -0.0f, 1e-40f,
                                             -70000.0f, 3.0f,  -3.0f, 0.1f};
  return corners;
}

std::vector<float> GoldenMany() { return MakeData("spread", 70001, 9); }

std::string Hex(const std::vector<uint8_t>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::vector<uint8_t> Unhex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

uint64_t Fnv1a(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001B3u;
  return hash;
}

std::map<std::string, Golden> ReadGolden() {
  // A kit that was packed elsewhere (scripts/gpu_kit) says where its copy is.
  const char* const directory = std::getenv("BDN_GOLDEN_DIR");
  std::ifstream file(std::string(directory != nullptr ? directory : BDN_GOLDEN_DIR) +
                     "/codecs.txt");
  EXPECT_TRUE(file.is_open()) << "tests/golden/codecs.txt is missing";
  std::map<std::string, Golden> golden;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string spec;
    Golden entry;
    words >> spec >> entry.corners >> entry.many_hash;
    golden[spec] = entry;
  }
  return golden;
}

}  // namespace bdn
