// The levels of twobit, what they keep, and what its layout forbids.

#include "compressors/twobit.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "compressors/onebit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Floats = std::vector<float>;

constexpr float kMost = 0x1.54p126f;

ConstView ViewOf(const Floats& x) { return {x.data(), DType::kFloat32, x.size()}; }

Floats RoundTrip(const Codec& codec, const Floats& x, float scale = 1.0f) {
  return DecodeToVector(codec, AsBytes(EncodeToVector(codec, ViewOf(x))), x.size(), scale);
}

// Little-endian halves.
std::vector<uint8_t> Payload(const std::vector<uint16_t>& halves) {
  std::vector<uint8_t> bytes;
  for (const uint16_t half : halves) {
    bytes.push_back(half & 255);
    bytes.push_back(half >> 8);
  }
  return bytes;
}

std::string ErrorOf(const std::vector<uint16_t>& halves, size_t n, size_t block = 0) {
  const auto status = MakeTwoBit(block)->Validate(AsBytes(Payload(halves)), n, DType::kFloat32);
  return status.ok() ? "OK" : std::string(status.message());
}

// By the method of Box and Muller.
Floats Normal(size_t n) {
  std::mt19937_64 random(1);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  Floats x(n);
  for (float& value : x) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = static_cast<float>(radius * std::cos(2 * M_PI * uniform()));
  }
  return x;
}

double EnergyLeft(const Codec& codec, const Floats& x) {
  const Floats decoded = RoundTrip(codec, x);
  double left = 0;
  double all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    left += std::pow(x[i] - decoded[i], 2);
    all += std::pow(x[i], 2);
  }
  return left / all;
}

TEST(TwoBit, SendsTheNearestOfFourLevels) {
  // The mean is 4 / 0.624, near enough, so that the scale is 4.
  const Floats x = {-20.0f, -8.5f, -8.0f, -0.1f, 0.0f, -0.0f, 3.0f, 8.0f, 8.5f, 8.0f};
  for (const std::string& target : KernelTargets()) {
    const ScopedKernelTarget on(target);
    EXPECT_THAT(RoundTrip(*MakeTwoBit(0), x), ElementsAre(-12, -12, -4, -4, 4, 4, 4, 4, 12, 4))
        << target;
  }
}

TEST(TwoBit, RoundsThreeScalesTimesAFactorOnce) {
  const Floats x = {1.0f, 9.0f, -1.0f, -9.0f};
  const Floats decoded = RoundTrip(*MakeTwoBit(0), x);
  ASSERT_EQ(decoded[1], 3 * decoded[0]);
  const float factor = 1.0f / 3;
  const Floats scaled = RoundTrip(*MakeTwoBit(0), x, factor);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(scaled[i], factor * decoded[i]) << i;
}

TEST(TwoBit, EveryBlockHasAScaleOfItsOwn) {
  Floats x(100, 1e-20f);
  for (size_t i = 32; i < 64; ++i) x[i] = -1e20f;
  const Floats decoded = RoundTrip(*MakeTwoBit(32), x);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(decoded[i] / x[i], 0.624, 0.002) << i;
}

TEST(TwoBit, ABlockOfZerosStaysZero) {
  Floats x(96, 0.0f);
  for (size_t i = 64; i < 96; ++i) x[i] = 1.0f;
  const Floats decoded = RoundTrip(*MakeTwoBit(64), x);
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(decoded[i], 0.0f) << i;
}

TEST(TwoBit, IsFiniteOfTheLargest) {
  const float largest = std::numeric_limits<float>::max();
  const Floats decoded = RoundTrip(*MakeTwoBit(0), {largest, -largest, largest});
  EXPECT_THAT(decoded, ElementsAre(3 * kMost, -3 * kMost, 3 * kMost));
  EXPECT_TRUE(std::isfinite(3 * kMost) && !std::isfinite(3 * std::nextafter(0x1.56p126f, 1.0f)));
}

TEST(TwoBit, LeavesAThirdOfWhatOneBitLeavesOfNormalData) {
  const Floats x = Normal(1 << 20);
  EXPECT_NEAR(EnergyLeft(*MakeTwoBit(0), x), 0.1188, 0.001);
  EXPECT_NEAR(EnergyLeft(*MakeOneBit(0), x), 1 - 2 / M_PI, 0.003);
}

TEST(TwoBit, ATakenResidualIsWhatWasNotSent) {
  for (const size_t n : {1, 33, 9001}) {
    const Floats g = MakeData("normal", n);
    Floats residual(n, 0.25f);
    const auto codec = MakeTwoBit(64);
    const auto payload =
        EncodeFeedbackToVector(*codec, {.g = ViewOf(g), .residual = residual.data()});
    const Floats sent = DecodeToVector(*codec, AsBytes(payload), n);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(residual[i], (g[i] + 0.25f) - sent[i]) << i;
  }
}

TEST(TwoBit, HasTwoBitsAnElementAndHalfAScaleABlock) {
  EXPECT_EQ(MakeTwoBit(64)->MaxEncodedBytes(1 << 20, DType::kFloat32), (1u << 18) + (1u << 15));
  EXPECT_EQ(MakeTwoBit(64)->MaxEncodedBytes(65, DType::kFloat32), 4u + 2 * 12);
  EXPECT_EQ(MakeTwoBit(64)->MaxEncodedBytes(64, DType::kFloat32), 4u + 2 * 8);
  EXPECT_EQ(MakeTwoBit(0)->MaxEncodedBytes(0, DType::kFloat32), 0u);
}

TEST(TwoBit, RefusesWhatTheLayoutForbids) {
  // scale, padding, negative, large
  EXPECT_EQ(ErrorOf({0x3f80, 0, 0b11111, 0, 0b11111, 0}, 5), "OK");
  EXPECT_EQ(ErrorOf({0x7eaa, 0, 0, 0, 0, 0}, 5), "OK");
  EXPECT_THAT(ErrorOf({0x3f80, 0, 0, 0, 0}, 5), HasSubstr("has 10 bytes, expected 12"));
  EXPECT_THAT(ErrorOf({0x3f80, 0}, 0), HasSubstr("has 4 bytes, expected 0"));
  EXPECT_THAT(ErrorOf({0x3f80, 1, 0, 0, 0, 0}, 5), HasSubstr("padding that is not zero"));
  EXPECT_THAT(ErrorOf({0x3f80, 0x8000, 0, 0, 0, 0}, 5), HasSubstr("padding that is not zero"));
  EXPECT_THAT(ErrorOf({0x7eab, 0, 0, 0, 0, 0}, 5), HasSubstr("scale 0 is"));
  EXPECT_THAT(ErrorOf({0x8000, 0, 0, 0, 0, 0}, 5), HasSubstr("scale 0 is -0"));
  EXPECT_THAT(ErrorOf({0xbf80, 0, 0, 0, 0, 0}, 5), HasSubstr("scale 0 is -1"));
  EXPECT_THAT(ErrorOf({0x7f80, 0, 0, 0, 0, 0}, 5), HasSubstr("scale 0 is inf"));
  EXPECT_THAT(ErrorOf({0x7fc0, 0, 0, 0, 0, 0}, 5), HasSubstr("scale 0 is nan"));
  EXPECT_THAT(ErrorOf({0x3f80, 0, 32, 0, 0, 0}, 5), HasSubstr("bits past its 5 elements"));
  EXPECT_THAT(ErrorOf({0x3f80, 0, 0, 0, 0, 0x8000}, 5), HasSubstr("bits past its 5 elements"));
  EXPECT_THAT(ErrorOf({0, 0x7f80, 0, 0, 0, 0, 0, 0, 0, 0}, 40, 32), HasSubstr("scale 1 is inf"));
}

}  // namespace
}  // namespace bdn
