#ifndef BANDONEON_TESTS_WIRE_WIRE_BYTES_H_
#define BANDONEON_TESTS_WIRE_WIRE_BYTES_H_

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/bytes.h"
#include "common/base/crc32c.h"
#include "common/base/endian.h"
#include "common/wire/frame.h"
#include "gtest/gtest.h"

// The parts that the suites of the wire share: bytes as the plain vectors that the reference
// decoder takes.

namespace bdn {

using Bytes = std::vector<uint8_t>;

inline ByteSpan Span(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }
inline Bytes ToBytes(ByteSpan span) {
  const auto* begin = reinterpret_cast<const uint8_t*>(span.data());
  return Bytes(begin, begin + span.size());
}
inline Bytes HeaderBytes(const FrameHeader& header) { return ToBytes(EncodeHeader(header)); }
inline Bytes FrameBytes(const Frame& frame) {
  Bytes bytes = HeaderBytes(frame.header);
  const Bytes payload = ToBytes(frame.payload.span());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

inline Bytes Unhex(const std::string& hex) {
  const std::string text = absl::HexStringToBytes(hex);
  return Bytes(text.begin(), text.end());
}

// Returns the header with its CRC made right again.
inline Bytes Sealed(Bytes header) {
  const Bytes covered(header.begin(), header.begin() + 92);
  StoreLittle(std::as_writable_bytes(std::span(header)), 92, Crc32c(Span(covered)));
  return header;
}

// Returns a header with one field overwritten, and sealed.
template <typename T>
Bytes With(Bytes header, size_t offset, T value) {
  StoreLittle(std::as_writable_bytes(std::span(header)), offset, value);
  return Sealed(std::move(header));
}

// Reads whole frames by name from tests/golden/frames.txt.
inline std::map<std::string, Bytes> ReadGoldenFrames() {
  std::ifstream file(BDN_GOLDEN_DIR "/frames.txt");
  EXPECT_TRUE(file.is_open());
  std::map<std::string, Bytes> frames;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    std::string hex;
    words >> name >> hex;
    frames[name] = Unhex(hex);
  }
  return frames;
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_WIRE_WIRE_BYTES_H_
