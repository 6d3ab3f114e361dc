// Tests of dither beyond codec_contract_test.cc: that it is unbiased, and which values it sends.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "compressors/codec_spec.h"
#include "gtest/gtest.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

std::vector<float> Sent(const Codec& codec, const std::vector<float>& p, uint64_t step) {
  const Draw draw({.run_seed = 5, .step = step});
  std::vector<std::byte> out(codec.MaxEncodedBytes(p.size(), DType::kFloat32));
  const auto used = codec.Encode({p.data(), DType::kFloat32, p.size()}, 1.0f, draw, out);
  EXPECT_TRUE(used.ok()) << used.status();
  return DecodeToVector(codec, ByteSpan(out).first(used.value_or(0)), p.size());
}

double Norm(const std::vector<float>& p, bool l2) {
  double sum = 0;
  double largest = 0;
  for (const float value : p) {
    sum += static_cast<double>(value) * value;
    largest = std::max<double>(largest, std::abs(value));
  }
  return l2 ? std::sqrt(sum) : largest;
}

struct DitherCase {
  const char* label;
  const char* spec;
  int levels;
  bool natural;
  bool l2;
};
void PrintTo(const DitherCase& dither, std::ostream* out) { *out << dither.spec; }

class DitherStatistics : public ::testing::TestWithParam<DitherCase> {
 protected:
  void SetUp() override {
    codec_ = ParseCodecSpec(GetParam().spec)->codec;
    norm_ = Norm(p_, GetParam().l2);
    const int s = GetParam().levels;
    if (s == 0) grid_ = {-norm_};
    for (int k = 0; k <= s; ++k) {
      const double natural = k == 0 ? 0 : std::ldexp(norm_, k - s);
      grid_.push_back(GetParam().natural ? natural : s == 0 ? norm_ : norm_ * k / s);
    }
  }
  // The levels on both sides of `value`: all are of its sign, but for the two points.
  std::pair<double, double> Around(double value) const {
    const double sought = GetParam().levels == 0 ? value : std::abs(value);
    const auto above = std::lower_bound(grid_.begin(), grid_.end() - 1, sought * (1 - 1e-6));
    const double high = *above;
    const double low = above == grid_.begin() ? high : *(above - 1);
    return sought == value ? std::pair(low, high) : std::pair(-high, -low);
  }

  const std::vector<float> p_ = MakeData("normal", 1537, 11);
  std::shared_ptr<const Codec> codec_;
  double norm_ = 0;
  std::vector<double> grid_;
};

TEST_P(DitherStatistics, SendsOneOfTheNeighbouringLevels) {
  const auto sent = Sent(*codec_, p_, 1);
  for (size_t i = 0; i < p_.size(); ++i) {
    const auto [low, high] = Around(p_[i]);
    const double nearest = std::min(std::abs(sent[i] - low), std::abs(sent[i] - high));
    ASSERT_LE(nearest, 1e-6 * norm_) << i << ": " << p_[i] << " was sent as " << sent[i];
  }
}

// The mean over many draws is the element, to five standard deviations of that mean; and over all
// elements the squared deviations, in units of their variance, average to 1.
TEST_P(DitherStatistics, IsUnbiasedWithTheVarianceOfItsLevels) {
  constexpr uint64_t kDraws = 2000;
  std::vector<double> sum(p_.size());
  for (uint64_t step = 0; step < kDraws; ++step) {
    const auto sent = Sent(*codec_, p_, step);
    for (size_t i = 0; i < p_.size(); ++i) sum[i] += sent[i];
  }
  double squares = 0;
  size_t counted = 0;
  for (size_t i = 0; i < p_.size(); ++i) {
    const auto [low, high] = Around(p_[i]);
    const double variance = std::max(0.0, (p_[i] - low) * (high - p_[i]));
    const double deviation = std::sqrt(variance / kDraws);
    const double error = sum[i] / kDraws - p_[i];
    ASSERT_LE(std::abs(error), 5 * deviation + 1e-4 * (high - low)) << i << " " << p_[i];
    // Where a level is rarely drawn the mean is far from normal.
    if (variance < 0.01 * (high - low) * (high - low)) continue;
    squares += error * error / (deviation * deviation);
    ++counted;
  }
  ASSERT_GT(counted, 300u);
  EXPECT_NEAR(squares / static_cast<double>(counted), 1.0, 0.25);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DitherStatistics,
    ::testing::Values(DitherCase{"Linear", "dither", 7, false, false},
                      DitherCase{"LinearL2", "dither(norm=l2)", 7, false, true},
                      DitherCase{"Linear100", "dither(levels=100)", 100, false, false},
                      DitherCase{"Natural", "dither(kind=natural)", 7, true, false},
                      DitherCase{"NaturalL2", "dither(kind=natural,norm=l2)", 7, true, true},
                      DitherCase{"Natural2", "dither(levels=2,kind=natural)", 2, true, false},
                      DitherCase{"TwoPoints", "dither(levels=0)", 0, false, false},
                      DitherCase{"TwoPointsL2", "dither(levels=0,norm=l2)", 0, false, true}),
    [](const auto& info) { return info.param.label; });

TEST(Dither, KeepsWhatIsALevel) {
  std::vector<float> p;
  for (int k = -7; k <= 7; ++k) p.push_back(static_cast<float>(k));
  EXPECT_EQ(Sent(*ParseCodecSpec("dither")->codec, p, 1), p);
  p.assign({0.0f});
  for (int k = -6; k <= 0; ++k) p.insert(p.end(), {std::ldexp(1.0f, k), -std::ldexp(1.0f, k)});
  EXPECT_EQ(Sent(*ParseCodecSpec("dither(kind=natural)")->codec, p, 1), p);
  p.assign({3.0f, -3.0f, 3.0f, 3.0f, -3.0f});
  EXPECT_EQ(Sent(*ParseCodecSpec("dither(levels=0)")->codec, p, 1), p);
}

// Squares that overflow or vanish in float32 do not change what is sent.
TEST(Dither, L2NormHasTheWholeRange) {
  const auto codec = ParseCodecSpec("dither(levels=127,norm=l2)")->codec;
  const auto p = MakeData("normal", 3000, 2);
  const auto expected = Sent(*codec, p, 1);
  for (const int exponent : {-90, -70, 70, 120}) {
    const float scale = std::ldexp(1.0f, exponent);
    auto scaled = Sent(*codec, Times(scale, p), 1);
    double error = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      error = std::max<double>(error, std::abs(scaled[i] / scale - expected[i]));
    }
    EXPECT_LE(error, 1e-4) << exponent;
  }
  const float largest = std::numeric_limits<float>::max();
  for (const float value : Sent(*codec, std::vector<float>(3000, largest), 1)) {
    EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(Dither, WhatIsTooSmallForItsLevelsIsSentAsZeros) {
  const auto codec = ParseCodecSpec("dither(levels=31,kind=natural)")->codec;
  const std::vector<float> least(600, 0x1p-96f);
  EXPECT_EQ(Sent(*codec, least, 1), least);
  EXPECT_EQ(Sent(*codec, std::vector<float>(600, 0x1.fffffep-97f), 1), std::vector<float>(600));
}

TEST(Dither, SizeIsTheNormAndTheBits) {
  const auto bytes = [](const char* spec, size_t n) {
    return ParseCodecSpec(spec)->codec->MaxEncodedBytes(n, DType::kFloat32);
  };
  const std::pair<int, size_t> kBits[] = {{0, 1}, {1, 2},  {2, 3},  {3, 3},  {4, 4},  {7, 4},
                                          {8, 5}, {15, 5}, {16, 6}, {31, 6}, {63, 7}, {127, 8}};
  for (const auto& [levels, bits] : kBits) {
    const std::string spec = "dither(levels=" + std::to_string(levels) + ")";
    for (const size_t n : {0, 1, 7, 511, 512, 513, 100000}) {
      EXPECT_EQ(bytes(spec.c_str(), n), n == 0 ? 0 : 4 + (n * bits + 7) / 8) << spec << " " << n;
    }
  }
}

TEST(Dither, ValidateRefusesCodesAndNormsThatNoEncoderWrites) {
  const auto codec = ParseCodecSpec("dither(levels=5)")->codec;
  const auto valid = [&](float norm, uint8_t code, uint8_t past) {
    // 513 elements, 4 bits each: the last has a byte of its own.
    for (const size_t at : {size_t{4}, size_t{4 + 256}}) {
      std::vector<uint8_t> payload(4 + 257);
      std::memcpy(payload.data(), &norm, 4);
      payload[at] = code;
      payload.back() |= static_cast<uint8_t>(past << 4);
      if (!codec->Validate(AsBytes(payload), 513, DType::kFloat32).ok()) return false;
    }
    return true;
  };
  for (const int code : {0, 1, 5, 9, 13}) {
    EXPECT_TRUE(valid(1.0f, static_cast<uint8_t>(code), 0)) << code;
  }
  for (const int code : {6, 7, 8, 14, 15}) {
    EXPECT_FALSE(valid(1.0f, static_cast<uint8_t>(code), 0)) << code;
  }
  EXPECT_FALSE(valid(1.0f, 1, 1));
  EXPECT_TRUE(valid(0.0f, 0, 0));
  EXPECT_FALSE(valid(0.0f, 1, 0));
  EXPECT_TRUE(valid(0x1.fffffp127f, 5, 0));
  for (const float norm :
       {-0.0f, -1.0f, 0x1.fffffp-97f, 0x1.fffff2p127f, std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE(valid(norm, 0, 0)) << norm;
  }
}

TEST(Dither, OptionsAreBounded) {
  for (const char* good :
       {"dither(levels=0)", "dither(levels=127)", "dither(levels=31,kind=natural)",
        "dither(levels=1,kind=natural,norm=l2)"}) {
    ASSERT_TRUE(ParseCodecSpec(good).ok()) << good;
    EXPECT_EQ(ParseCodecSpec(good)->spec(), good);
  }
  for (const char* bad : {"dither(levels=128)", "dither(levels=0,kind=natural)",
                          "dither(levels=32,kind=natural)", "dither(norm=l1)"}) {
    EXPECT_FALSE(ParseCodecSpec(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace bdn
