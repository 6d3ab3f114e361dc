// The scales of onebit, in both of their types, and what its layout forbids.

#include "compressors/onebit.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

Floats RoundTrip(const Codec& codec, const Floats& x) {
  const ConstView view{x.data(), DType::kFloat32, x.size()};
  return DecodeToVector(codec, AsBytes(EncodeToVector(codec, view)), x.size());
}

std::string ErrorOf(const Codec& codec, const std::vector<uint16_t>& halves, size_t n) {
  std::vector<uint8_t> bytes;
  for (const uint16_t half : halves) {
    bytes.push_back(half & 255);
    bytes.push_back(half >> 8);
  }
  const auto status = codec.Validate(AsBytes(bytes), n, DType::kFloat32);
  return status.ok() ? "OK" : std::string(status.message());
}

TEST(OneBit, RoundsItsScalesToTheNearestBFloat16) {
  // Between 1 and 1 + 2^-7: below the middle, on it, above it, and on the next, which is odd.
  EXPECT_THAT(RoundTrip(*MakeOneBit(0, true), {1.0038f, 1.0038f}), Each(1.0f));
  EXPECT_THAT(RoundTrip(*MakeOneBit(0, true), {0x1.01p0f, 0x1.01p0f}), Each(1.0f));
  EXPECT_THAT(RoundTrip(*MakeOneBit(0, true), {0x1.010002p0f, 0x1.010002p0f}), Each(0x1.02p0f));
  EXPECT_THAT(RoundTrip(*MakeOneBit(0, true), {0x1.03p0f, 0x1.03p0f}), Each(0x1.04p0f));
  EXPECT_THAT(RoundTrip(*MakeOneBit(0), {0x1.01p0f, 0x1.01p0f}), Each(0x1.01p0f));
}

TEST(OneBit, IsFiniteOfTheLargestInBFloat16) {
  const float largest = std::numeric_limits<float>::max();
  EXPECT_THAT(RoundTrip(*MakeOneBit(0, true), {largest, largest}), Each(0x1.fep127f));
}

TEST(OneBit, OfBFloat16HasHalfTheScalesBytes) {
  constexpr size_t kN = 1 << 20;
  EXPECT_EQ(MakeOneBit(64)->MaxEncodedBytes(kN, DType::kFloat32), kN * 3 / 16);
  EXPECT_EQ(MakeOneBit(64, true)->MaxEncodedBytes(kN, DType::kFloat32), kN * 5 / 32);
  EXPECT_EQ(MakeOneBit(64, true)->MaxEncodedBytes(129, DType::kFloat32), 2u * 4 + 5 * 4);
  EXPECT_EQ(MakeOneBit(64, true)->MaxEncodedBytes(0, DType::kFloat32), 0u);
}

TEST(OneBit, RefusesWhatTheLayoutForbids) {
  const auto narrow = MakeOneBit(0, true);
  const auto wide = MakeOneBit(0);
  // scale, padding, signs
  EXPECT_EQ(ErrorOf(*narrow, {0x7f7f, 0, 0b11111, 0}, 5), "OK");
  EXPECT_THAT(ErrorOf(*narrow, {0x3f80, 0, 0}, 5), HasSubstr("has 6 bytes, expected 8"));
  EXPECT_THAT(ErrorOf(*narrow, {0x3f80, 1, 0, 0}, 5), HasSubstr("padding that is not zero"));
  EXPECT_THAT(ErrorOf(*narrow, {0x7f80, 0, 0, 0}, 5), HasSubstr("scale 0 is inf"));
  EXPECT_THAT(ErrorOf(*narrow, {0x7fc0, 0, 0, 0}, 5), HasSubstr("scale 0 is nan"));
  EXPECT_THAT(ErrorOf(*narrow, {0x8000, 0, 0, 0}, 5), HasSubstr("scale 0 is -0"));
  EXPECT_THAT(ErrorOf(*narrow, {0x3f80, 0, 32, 0}, 5), HasSubstr("bits past its 5 elements"));
  // A float32 scale is four bytes, all of them its own.
  EXPECT_EQ(ErrorOf(*wide, {0xffff, 0x7f7f, 0b11111, 0}, 5), "OK");
  EXPECT_THAT(ErrorOf(*wide, {0, 0x7f80, 0, 0}, 5), HasSubstr("scale 0 is inf"));
  EXPECT_THAT(ErrorOf(*wide, {1, 0x7f80, 0, 0}, 5), HasSubstr("scale 0 is nan"));
  EXPECT_THAT(ErrorOf(*wide, {0, 0x8000, 0, 0}, 5), HasSubstr("scale 0 is -0"));
  EXPECT_THAT(ErrorOf(*wide, {0, 0x3f80, 0, 0x8000}, 5), HasSubstr("bits past its 5 elements"));
}

}  // namespace
}  // namespace bdn
