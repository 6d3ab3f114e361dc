// The kernels that take a step of error feedback in one pass, beside the arithmetic of their header
// one element at a time, and the cases that they leave to other code.

#include "kernels/feedback_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "kernels/onebit_kernels.h"
#include "kernels/twobit_kernels.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

using Floats = std::vector<float>;

constexpr float kLargest = std::numeric_limits<float>::max();

enum class Codes { kOneBit, kOneBitBFloat, kTwoBit };
constexpr Codes kAllCodes[] = {Codes::kOneBit, Codes::kOneBitBFloat, Codes::kTwoBit};

// The output of a step. The payload's parts lie an odd number of bytes behind aligned memory.
struct Left {
  Floats residual;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> negative;
  std::vector<uint8_t> large;
  size_t done = 0;
};

class Step {
 public:
  Step(Codes codes, size_t block, const Floats& g, const Floats& residual, FeedbackOptions options)
      : codes_(codes), block_(block), g_(g), residual_(residual), options_(options) {}

  Left ByKernel() const {
    Left left = Empty();
    const FeedbackBlocks step{.g = g_.data(),
                              .n = g_.size(),
                              .options = options_,
                              .residual = left.residual.data(),
                              .block = block_,
                              .factor = Factor(),
                              .most = Most(),
                              .bfloat = BFloat(),
                              .scales = left.scales.data() + 1};
    left.done = codes_ == Codes::kTwoBit
                    ? PackTwoBitsOfFeedback(step, left.negative.data() + 1, left.large.data() + 1)
                    : PackSignsOfFeedback(step, left.negative.data() + 1);
    return left;
  }

  // The first `done` elements of it, whole blocks.
  Left Plainly(size_t done) const {
    Left left = Empty();
    left.done = done;
    for (size_t begin = 0; begin < done; begin += block_) {
      Floats p(block_);
      for (size_t i = 0; i < block_; ++i) {
        p[i] = (options_.scale * g_[begin + i]) + (options_.decay * residual_[begin + i]);
      }
      const float scale = Scale(p);
      PutScale(scale, begin / block_, &left);
      for (size_t i = 0; i < block_; ++i) {
        const bool is_large = codes_ == Codes::kTwoBit && std::fabs(p[i]) > 2 * scale;
        const float level = is_large ? 3 * scale : scale;
        left.residual[begin + i] = p[i] - (p[i] < 0 ? -level : level);
        PutBit(p[i] < 0, begin + i, &left.negative);
        PutBit(is_large, begin + i, &left.large);
      }
    }
    return left;
  }

 private:
  float Factor() const { return codes_ == Codes::kTwoBit ? 0.624f : 1.0f; }
  float Most() const { return codes_ == Codes::kTwoBit ? 0x1.54p126f : kLargest; }
  bool BFloat() const { return codes_ != Codes::kOneBit; }

  Left Empty() const {
    const size_t words = (g_.size() + 31) / 32 * 4;
    return {.residual = residual_,
            .scales = std::vector<uint8_t>(1 + (g_.size() / block_ + 1) * sizeof(float)),
            .negative = std::vector<uint8_t>(1 + words),
            .large = std::vector<uint8_t>(1 + words)};
  }

  float Scale(const Floats& p) const {
    float lanes[16] = {};
    for (size_t i = 0; i < p.size(); ++i) lanes[i % 16] += std::fabs(p[i]);
    double joined[16];
    std::copy(lanes, lanes + 16, joined);
    for (size_t width = 8; width > 0; width /= 2) {
      for (size_t l = 0; l < width; ++l) joined[l] += joined[l + width];
    }
    const auto mean = static_cast<float>(joined[0] / static_cast<double>(p.size()));
    const float scale = std::min(Factor() * mean, Most());
    return BFloat() ? BFloat16ToFloat(FloatToBFloat16(scale)) : scale;
  }
  void PutScale(float scale, size_t b, Left* left) const {
    const uint16_t half = FloatToBFloat16(scale);
    if (BFloat()) {
      std::memcpy(left->scales.data() + 1 + b * sizeof(half), &half, sizeof(half));
    } else {
      std::memcpy(left->scales.data() + 1 + b * sizeof(scale), &scale, sizeof(scale));
    }
  }
  static void PutBit(bool bit, size_t i, std::vector<uint8_t>* words) {
    (*words)[1 + i / 8] |= static_cast<uint8_t>(bit ? 1u << i % 8 : 0u);
  }

  const Codes codes_;
  const size_t block_;
  const Floats g_;
  const Floats residual_;
  const FeedbackOptions options_;
};

void ExpectSame(const Left& got, const Left& expected, const std::string& what) {
  EXPECT_EQ(got.done, expected.done) << what;
  EXPECT_TRUE(SameBits(got.residual, expected.residual)) << what;
  EXPECT_TRUE(got.scales == expected.scales) << what;
  EXPECT_TRUE(got.negative == expected.negative) << what;
  EXPECT_TRUE(got.large == expected.large) << what;
}

TEST(FeedbackBlocks, DoTheWholeBlocksAsTheirHeaderHasIt) {
  for (const std::string& target : KernelTargets()) {
    const ScopedKernelTarget on(target);
    for (const Codes codes : kAllCodes) {
      for (const size_t block : {64, 128, 192, 256, 960, 1024}) {
        for (const size_t n : {0, 63, 64, 65, 1000, 1024, 1087, 4096, 9001}) {
          for (const char* kind : {"normal", "zeros", "signed_zeros", "subnormal", "spread"}) {
            const Step step(codes, block, MakeData(kind, n), MakeData(kind, n, 2),
                            {.scale = 0.37f, .decay = 0.75f});
            ExpectSame(step.ByKernel(), step.Plainly(n / block * block),
                       target + " " + kind + " " + std::to_string(n));
          }
        }
      }
    }
  }
}

TEST(FeedbackBlocks, StopBeforeWhatOverflowsAndLeaveIt) {
  constexpr size_t kN = 4096;
  constexpr size_t kBad = 2500;
  // p itself, and a sum of |p| that are finite.
  for (const bool only_the_sum : {false, true}) {
    Floats g = MakeData("normal", kN);
    Floats residual = MakeData("normal", kN, 2);
    g[kBad] = residual[kBad] = only_the_sum ? 0.4f * kLargest : 0.6f * kLargest;
    g[kBad + 16] = residual[kBad + 16] = 0.4f * kLargest;
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      for (const Codes codes : kAllCodes) {
        const Step step(codes, 64, g, residual, {});
        Left got = step.ByKernel();
        EXPECT_EQ(got.done, 2048u) << target;
        Left expected = step.Plainly(2048);
        // Scales of what is left are unspecified.
        const size_t defined = 1 + got.done / 64 * (codes == Codes::kOneBit ? 4 : 2);
        got.scales.resize(defined);
        expected.scales.resize(defined);
        ExpectSame(got, expected, target);
      }
    }
  }
}

TEST(FeedbackBlocks, LeaveBlocksOfOtherLengths) {
  const Floats g = MakeData("normal", 5000);
  for (const std::string& target : KernelTargets()) {
    const ScopedKernelTarget on(target);
    for (const Codes codes : kAllCodes) {
      for (const size_t block : {32, 96, 1000, 1088, 2048, 5000}) {
        const Step step(codes, block, g, g, {});
        ExpectSame(step.ByKernel(), step.Plainly(0), target + " " + std::to_string(block));
      }
    }
  }
}

}  // namespace
}  // namespace bdn
