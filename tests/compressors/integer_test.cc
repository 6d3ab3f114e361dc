#include "compressors/integer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "gtest/gtest.h"
#include "kernels/hadamard_kernels.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

std::shared_ptr<const Codec> CodecOf(const char* spec) { return ParseCodecSpec(spec)->codec; }

std::vector<float> RoundTrip(const Codec& codec, const std::vector<float>& x,
                             const Draw& draw = TestDraw()) {
  std::vector<std::byte> out(codec.MaxEncodedBytes(x.size(), DType::kFloat32));
  const auto used = codec.Encode({x.data(), DType::kFloat32, x.size()}, 1.0f, draw, out);
  EXPECT_TRUE(used.ok()) << used.status();
  EXPECT_TRUE(codec.Validate(out, x.size(), DType::kFloat32).ok());
  return DecodeToVector(codec, out, x.size());
}

double SquaredError(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x[i]) - y[i], 2);
  return sum;
}

TEST(Integer, PayloadsAreScalesThenTheBytesThatHoldAnElement) {
  EXPECT_EQ(CodecOf("int8")->MaxEncodedBytes(129, DType::kFloat32), 2u * 4 + 129);
  EXPECT_EQ(CodecOf("int4")->MaxEncodedBytes(128, DType::kFloat32), 4u + 64);
  EXPECT_EQ(CodecOf("int4")->MaxEncodedBytes(9, DType::kFloat32), 4u + 9);
  EXPECT_EQ(CodecOf("int4")->MaxEncodedBytes(31, DType::kFloat32), 4u + 16);
  EXPECT_EQ(CodecOf("int2")->MaxEncodedBytes(33, DType::kFloat32), 4u + 9);
  EXPECT_EQ(CodecOf("int4")->MaxEncodedBytes(0, DType::kFloat32), 0u);
}

TEST(Integer, WholeNumbersUpToTheLevelsAreExact) {
  for (const char* spec : {"int4(group=32,round=nearest)", "int4(group=32)"}) {
    std::vector<float> x(96);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 15) - 7.0f;
    EXPECT_EQ(RoundTrip(*CodecOf(spec), x), x) << spec;
  }
}

TEST(Integer, NearestRoundsTiesToEven) {
  const std::vector<float> x = {7.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 0.51f};
  const std::vector<float> rounded = {7, 0, 2, 2, 0, -2, -2, 1};
  EXPECT_EQ(RoundTrip(*CodecOf("int4(round=nearest)"), x), rounded);
}

TEST(Integer, GroupsUnderTwoToTheMinusHundredAreZero) {
  std::vector<float> x(64, 0x1p-101f);
  x[40] = 0x1p-100f;
  const auto y = RoundTrip(*CodecOf("int8(group=32,round=nearest)"), x);
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(y[i], 0.0f);
  EXPECT_NEAR(y[40], 0x1p-100f, 0x1p-120f);
}

// The mean of many draws comes to x: its distance from x shrinks as their number's root.
void ExpectUnbiased(const char* spec) {
  constexpr int kDraws = 1000;
  const auto codec = CodecOf(spec);
  const auto x = MakeData("normal", 512);
  std::vector<double> mean(x.size());
  double one_draw = 0;
  for (Step step = 0; step < kDraws; ++step) {
    const auto y = RoundTrip(*codec, x, Draw({.run_seed = 11, .step = step}));
    one_draw += SquaredError(x, y) / kDraws;
    for (size_t i = 0; i < x.size(); ++i) mean[i] += static_cast<double>(y[i]) / kDraws;
  }
  double of_mean = 0;
  double bias = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    of_mean += std::pow(mean[i] - x[i], 2);
    bias += mean[i] - x[i];
  }
  // Independent, unbiased draws make of_mean = one_draw / kDraws, to one part in sixteen.
  EXPECT_GT(of_mean * kDraws / one_draw, 0.75) << spec;
  EXPECT_LT(of_mean * kDraws / one_draw, 1.25) << spec;
  // The sum of all errors, in standard deviations.
  EXPECT_LT(std::abs(bias) / std::sqrt(one_draw / kDraws), 4.0) << spec;
}

TEST(Integer, StochasticRoundingIsUnbiased) {
  for (const char* spec : {"int8", "int4", "int2", "int4(hadamard=32)", "int2(hadamard=32)"}) {
    ExpectUnbiased(spec);
  }
}

TEST(Integer, HadamardSpreadsOutliers) {
  auto x = MakeData("normal", 8192);
  for (size_t i = 5; i < x.size(); i += 101) x[i] *= 40.0f;
  for (const std::string round : {"nearest", "stochastic"}) {
    const auto plain = CodecOf(("int4(round=" + round + ")").c_str());
    const auto spread = CodecOf(("int4(hadamard=32,round=" + round + ")").c_str());
    EXPECT_LT(SquaredError(x, RoundTrip(*spread, x)), 0.5 * SquaredError(x, RoundTrip(*plain, x)))
        << round;
  }
}

TEST(Integer, HadamardTwiceIsThirtyTwoTimes) {
  std::vector<float> x(75);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * i % 37) - 18.0f;
  auto y = x;
  WalshHadamard(y.data(), y.size(), 1.0f, y.data());
  EXPECT_EQ(y[0], std::accumulate(x.begin(), x.begin() + 32, 0.0f));
  WalshHadamard(y.data(), y.size(), 1.0f / 32, y.data());
  EXPECT_EQ(y, x);
}

TEST(Integer, TheLargestFloatsStayFinite) {
  const float largest = std::numeric_limits<float>::max();
  for (const char* spec : {"int8", "int4", "int2", "int8(hadamard=32)", "int2(hadamard=32)"}) {
    auto x = std::vector<float>(64, largest);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = -largest;
    for (const float value : RoundTrip(*CodecOf(spec), x))
      EXPECT_TRUE(std::isfinite(value)) << spec;
  }
}

// A little language: an int4 payload of 33 elements, two scales and 17 bytes of codes.
class Int4Payload {
 public:
  Int4Payload() : bytes_(EncodeToVector(*codec_, {x_.data(), DType::kFloat32, x_.size()})) {}
  Int4Payload& SetScale(size_t g, float scale) {
    std::memcpy(bytes_.data() + 4 * g, &scale, sizeof(scale));
    return *this;
  }
  Int4Payload& SetCode(size_t i, uint8_t code) {
    bytes_[8 + i] = code;
    return *this;
  }
  bool ok() const { return codec_->Validate(AsBytes(bytes_), 33, DType::kFloat32).ok(); }

 private:
  const std::vector<float> x_ = std::vector<float>(33, 1.0f);
  const std::shared_ptr<const Codec> codec_ = CodecOf("int4(group=32,round=nearest)");
  std::vector<uint8_t> bytes_;
};

TEST(Integer, ValidateRefusesWhatNoEncoderWrites) {
  EXPECT_TRUE(Int4Payload().ok());
  EXPECT_TRUE(Int4Payload().SetCode(16, 0x07).ok());
  EXPECT_FALSE(Int4Payload().SetCode(16, 0x17).ok()) << "a field past n";
  EXPECT_FALSE(Int4Payload().SetCode(3, 0x80).ok()) << "-8, high";
  EXPECT_FALSE(Int4Payload().SetCode(3, 0x08).ok()) << "-8, low";
  EXPECT_FALSE(Int4Payload().SetScale(0, 0.0f).ok()) << "codes without a scale";
  EXPECT_TRUE(Int4Payload().SetScale(1, 0.0f).SetCode(16, 0).ok());
  EXPECT_FALSE(Int4Payload().SetScale(1, -0.0f).SetCode(16, 0).ok());
  EXPECT_FALSE(Int4Payload().SetScale(1, -1.0f).ok());
  EXPECT_FALSE(Int4Payload().SetScale(1, 0x1p-120f).ok());
  EXPECT_FALSE(Int4Payload().SetScale(1, std::numeric_limits<float>::infinity()).ok());
  EXPECT_FALSE(Int4Payload().SetScale(1, std::numeric_limits<float>::quiet_NaN()).ok());
  EXPECT_FALSE(Int4Payload().SetScale(1, std::numeric_limits<float>::max()).ok());
}

}  // namespace
}  // namespace bdn
