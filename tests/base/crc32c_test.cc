#include "common/base/crc32c.h"

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace bdn {
namespace {

ByteSpan Text(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, MatchesPublishedVectors) {
  EXPECT_EQ(Crc32c(Text("")), 0u);
  EXPECT_EQ(Crc32c(Text("123456789")), 0xE3069283u);
  // RFC 3720, B.4.
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xff});
  std::vector<std::byte> rising(32);
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(zeros), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(ones), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(rising), 0x46DD794Eu);
}

TEST(Crc32c, EveryMethodHasTheSameValuesAtEveryLengthAndOffset) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(70000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const auto expect_equal = [&](size_t offset, size_t size) {
    const ByteSpan part(bytes.data() + offset, size);
    const uint32_t expected = *Crc32cBy(Crc32cMethod::kTable, part);
    ASSERT_EQ(Crc32c(part), expected) << "offset " << offset << " size " << size;
    for (const auto method : {Crc32cMethod::kInstruction, Crc32cMethod::kFolding}) {
      ASSERT_EQ(Crc32cBy(method, part).value_or(expected), expected)
          << "method " << static_cast<int>(method) << " offset " << offset << " size " << size;
    }
  };
  for (size_t size = 0; size < 300; ++size) {
    for (size_t offset = 0; offset < 9; ++offset) expect_equal(offset, size);
  }
  // About where folding begins, and the edges of its four vectors of 64 bytes.
  for (size_t size = 1000; size < 1600; ++size) expect_equal(size % 9, size);
  // About the edges of the three streams of 4096 bytes.
  for (const size_t whole : {4096, 8192, 12288, 24576, 61440}) {
    for (size_t offset = 0; offset < 8; ++offset) {
      for (const size_t size : {whole - 9, whole - 1, whole, whole + 1, whole + 8, whole + 77}) {
        expect_equal(offset, size);
      }
    }
  }
}

TEST(Crc32c, SeesEveryFlippedBit) {
  std::vector<std::byte> bytes(13000, std::byte{0x5a});
  const uint32_t good = Crc32c(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += 101) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    ASSERT_NE(Crc32c(bytes), good) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
}

}  // namespace
}  // namespace bdn
