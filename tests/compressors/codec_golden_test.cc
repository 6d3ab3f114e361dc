// The bytes of every codec, pinned. A change here is a change of the wire format.

#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

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

// Nine elements that show the corners: ties, both zeros, a subnormal, what saturates.
const std::vector<float> kCorners = {1.0f,      -2.5f, 0.0f,  -0.0f, 1e-40f,
                                     -70000.0f, 3.0f,  -3.0f, 0.1f};
// Larger arrays are pinned by a hash of their payload: "spread" of this many elements, seed 9.
constexpr size_t kManyElements = 70001;

uint64_t Fnv1a(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001B3u;
  return hash;
}

struct Golden {
  std::string corners;
  std::string many_hash;
};

// Lines of "spec hex hash" after comments.
std::map<std::string, Golden> ReadGolden() {
  std::ifstream file(BDN_GOLDEN_DIR "/codecs.txt");
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

class CodecGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(CodecGolden, BytesAreAsCheckedIn) {
  const auto golden = ReadGolden();
  ASSERT_TRUE(golden.count(GetParam()) == 1) << "no golden bytes for " << GetParam();
  const Golden& entry = golden.at(GetParam());
  const auto codec = ParseCodecSpec(GetParam())->codec;
  const auto corners = EncodeToVector(*codec, {kCorners.data(), DType::kFloat32, kCorners.size()});
  const auto many = MakeData("spread", kManyElements, 9);
  const auto many_payload = EncodeToVector(*codec, {many.data(), DType::kFloat32, many.size()});
  EXPECT_EQ(Hex(corners), entry.corners);
  EXPECT_EQ(std::to_string(Fnv1a(many_payload)), entry.many_hash);
}

TEST_P(CodecGolden, CheckedInBytesStillDecode) {
  const auto codec = ParseCodecSpec(GetParam())->codec;
  const auto payload = Unhex(ReadGolden()[GetParam()].corners);
  ASSERT_TRUE(codec->Validate(AsBytes(payload), kCorners.size(), DType::kFloat32).ok());
  const auto decoded = DecodeToVector(*codec, AsBytes(payload), kCorners.size());
  EXPECT_EQ(Hex(EncodeToVector(*codec, {decoded.data(), DType::kFloat32, decoded.size()})).size(),
            2 * payload.size());
}

// Every line of the file, so that none is there in vain.
std::vector<std::string> SpecsOfTheFile() {
  std::vector<std::string> specs;
  for (const auto& [spec, golden] : ReadGolden()) specs.push_back(spec);
  return specs;
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecGolden, ::testing::ValuesIn(SpecsOfTheFile()));

}  // namespace
}  // namespace bdn
