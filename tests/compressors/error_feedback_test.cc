#include "compressors/memory/error_feedback.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "compressors/codec_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "tests/compressors/codec_inputs.h"

namespace bdn {
namespace {

constexpr size_t kN = 1003;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One end of a link: a codec, its residual and its momentum.
class Link {
 public:
  explicit Link(const std::string& spec, FeedbackOptions options = {})
      : codec_(ParseCodecSpec(spec)->codec), options_(options) {}

  Feedback Step(ConstView g) {
    return {.g = g, .options = options_, .residual = residual_.data(), .momentum = Momentum()};
  }
  // Accumulates, encodes, and returns what the far end decodes.
  std::vector<float> Send(ConstView g) {
    const auto payload = EncodeFeedbackToVector(*codec_, Step(g));
    return DecodeToVector(*codec_, AsBytes(payload), kN);
  }
  absl::Status TrySend(ConstView g) {
    std::vector<std::byte> out(codec_->MaxEncodedBytes(g.n, g.dtype));
    return codec_->EncodeFeedback(Step(g), TestDraw(), out).status();
  }
  void Undo(ConstView g, const std::vector<float>& decoded) {
    Feedback step = Step(g);
    step.options.decay = UndoDecay(step.options.decay);
    bdn::Undo(step, decoded.data());
  }
  FeedbackOptions& options() { return options_; }
  std::vector<float> residual_ = std::vector<float>(kN);
  std::vector<float> momentum_ = std::vector<float>(kN);

 private:
  float* Momentum() { return options_.momentum == 0 ? nullptr : momentum_.data(); }
  const std::shared_ptr<const Codec> codec_;
  FeedbackOptions options_;
};

TypedArray Gradient(uint64_t step, DType dtype = DType::kFloat32) {
  return TypedArray::Of(dtype, MakeData("normal", kN, step));
}

class ErrorFeedback : public ::testing::TestWithParam<const char*> {};

TEST_P(ErrorFeedback, SentAndLeftAreAllThatCameIn) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Link link(GetParam());
    std::vector<double> in(kN);
    std::vector<double> out(kN);
    for (uint64_t step = 1; step <= 30; ++step) {
      // A loss scale that moves: the residual is in unscaled units.
      link.options().scale = step < 10 ? 1.0f : 0.25f;
      const TypedArray g = Gradient(step, dtype);
      const auto decoded = link.Send(g.view());
      for (size_t i = 0; i < kN; ++i) {
        in[i] += static_cast<double>(link.options().scale) * g.Get(i);
        out[i] += decoded[i];
      }
    }
    for (size_t i = 0; i < kN; ++i) ASSERT_NEAR(in[i], out[i] + link.residual_[i], 1e-3) << i;
  }
}

TEST_P(ErrorFeedback, UndoRestoresResidualAndMomentum) {
  for (const FeedbackOptions options :
       {FeedbackOptions{}, FeedbackOptions{.scale = 0.5f, .decay = 0.9f},
        FeedbackOptions{.scale = 0.5f, .momentum = 0.9f}}) {
    Link link(GetParam(), options);
    link.Send(Gradient(1).view());
    const auto residual = link.residual_;
    const auto momentum = link.momentum_;
    const TypedArray g = Gradient(2);
    const auto decoded = link.Send(g.view());
    link.Undo(g.view(), decoded);
    for (size_t i = 0; i < kN; ++i) {
      ASSERT_NEAR(link.residual_[i], residual[i], 2e-5) << i;
      ASSERT_NEAR(link.momentum_[i], momentum[i], 2e-6) << i;
    }
  }
}

TEST_P(ErrorFeedback, UndoOfAClampedStepLeavesFiniteValues) {
  // The sum of gradient and momentum was clamped, so its parts are larger than the sum, and taking
  // them away again overflows.
  constexpr float kLargest = std::numeric_limits<float>::max();
  Link link(GetParam(), {.momentum = 0.9f});
  const TypedArray g = TypedArray::Of(DType::kFloat32, std::vector<float>(kN, -kLargest));
  link.residual_.assign(kN, kLargest);
  link.momentum_.assign(kN, kLargest);
  link.Undo(g.view(), std::vector<float>(kN, kLargest));
  for (size_t i = 0; i < kN; ++i) {
    ASSERT_EQ(link.residual_[i], kLargest) << i;
    ASSERT_EQ(link.momentum_[i], kLargest) << i;
  }
}

TEST_P(ErrorFeedback, UndoOfMomentumAloneLeavesNoResidual) {
  Link link(GetParam(), {.scale = 0.5f, .decay = 0.0f, .momentum = 0.9f});
  link.Send(Gradient(1).view());
  const auto momentum = link.momentum_;
  const TypedArray g = Gradient(2);
  link.Undo(g.view(), link.Send(g.view()));
  for (size_t i = 0; i < kN; ++i) {
    ASSERT_NEAR(link.residual_[i], 0.0f, 2e-5) << i;
    ASSERT_NEAR(link.momentum_[i], momentum[i], 2e-6) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, ErrorFeedback,
                         ::testing::Values("none", "fp16", "bf16", "onebit", "onebit(block=256)",
                                           "twobit(block=64)", "topk(ratio=0.01)"));

TEST(Accumulate, ComputesEachElementInTheOrderWritten) {
  const FeedbackOptions options{.scale = 0.3f, .decay = 0.7f, .momentum = 0.9f};
  for (const std::string& target : KernelTargets()) {
    const ScopedKernelTarget on(target);
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const TypedArray g = Gradient(1, dtype);
      auto residual = MakeData("normal", kN, 2);
      auto momentum = MakeData("normal", kN, 3);
      auto expected_residual = residual;
      auto expected_momentum = momentum;
      for (size_t i = 0; i < kN; ++i) {
        const float ag = options.scale * g.Get(i);
        expected_momentum[i] = options.momentum * momentum[i] + ag;
        expected_residual[i] =
            (ag + options.momentum * expected_momentum[i]) + options.decay * residual[i];
      }
      EncodeSource source(Feedback{.g = g.view(),
                                   .options = options,
                                   .residual = residual.data(),
                                   .momentum = momentum.data()});
      const float* const p = source.Peek(0, kN);
      EXPECT_TRUE(SameBits({p, p + kN}, expected_residual)) << target;
      source.Take(0, kN);
      EXPECT_TRUE(SameBits(residual, expected_residual)) << target;
      EXPECT_TRUE(SameBits(momentum, expected_momentum)) << target;
    }
  }
}

TEST(Accumulate, WithoutMomentumLeavesTheArrayAlone) {
  const TypedArray g = Gradient(1);
  auto residual = std::vector<float>(kN);
  auto momentum = MakeData("normal", kN, 3);
  const auto untouched = momentum;
  EncodeSource source(
      Feedback{.g = g.view(), .residual = residual.data(), .momentum = momentum.data()});
  source.Take(0, kN);
  EXPECT_TRUE(SameBits(momentum, untouched));
  EXPECT_TRUE(SameBits(residual, g.ToFloat()));
}

class AccumulateRefuses : public ::testing::Test {
 protected:
  // Expects InvalidArgument with `words` and nothing changed, on every target.
  void Expect(const TypedArray& g, const std::string& words) {
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget on(target);
      Link link("onebit", options_);
      link.residual_ = residual_;
      link.momentum_ = momentum_;
      const absl::Status status = link.TrySend(g.view());
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(words));
      EXPECT_TRUE(SameBits(link.residual_, residual_));
      EXPECT_TRUE(SameBits(link.momentum_, momentum_));
    }
  }
  FeedbackOptions options_;
  std::vector<float> residual_ = MakeData("normal", kN, 7);
  std::vector<float> momentum_ = MakeData("normal", kN, 8);
};

TEST_F(AccumulateRefuses, NanAndInfinity) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    TypedArray g = Gradient(1, dtype);
    g.Set(1002, kInfinity);
    Expect(g, "element 1002 is infinite");
    g.Set(3, std::numeric_limits<float>::quiet_NaN());
    Expect(g, "element 3 is nan");
  }
}

TEST_F(AccumulateRefuses, WhatOverflowsWhenScaled) {
  options_.scale = 1e30f;
  TypedArray g = Gradient(1);
  g.Set(5, 1e20f);
  Expect(g, "element 5 is infinite");
}

TEST(Accumulate, HoldsWhatOverflowsWithAMemory) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const std::string& target : KernelTargets()) {
    const ScopedKernelTarget on(target);
    for (const float momentum : {0.0f, 0.9f}) {
      Link link("none", {.momentum = momentum});
      TypedArray g = Gradient(1);
      g.Set(9, 3e38f);
      g.Set(700, -3e38f);
      link.residual_[9] = link.momentum_[9] = 3e38f;
      link.residual_[700] = link.momentum_[700] = -3e38f;
      const auto sent = link.Send(g.view());
      EXPECT_EQ(sent[9], kLargest);
      EXPECT_EQ(sent[700], -kLargest);
      for (const float e : link.residual_) ASSERT_EQ(e, 0.0f);
      for (const float m : link.momentum_) ASSERT_TRUE(std::isfinite(m));
    }
  }
}

TEST(FeedbackDecay, CorrectsForTheLearningRateWhereThereAreTwo) {
  EXPECT_EQ(FeedbackDecay(0.5f, false, 0.1f, 0.2f), 0.5f);
  EXPECT_EQ(FeedbackDecay(1.0f, true, 0.2f, 0.1f), 2.0f);
  EXPECT_EQ(FeedbackDecay(0.5f, true, 0.1f, 0.1f), 0.5f);
  EXPECT_EQ(FeedbackDecay(1.0f, true, 0.0f, 0.1f), 1.0f) << "the first step";
  EXPECT_EQ(FeedbackDecay(1.0f, true, 0.1f, 0.0f), 1.0f) << "a rate of 0 must not divide";
  EXPECT_EQ(FeedbackDecay(1.0f, true, 1.0f, 1e-45f), std::numeric_limits<float>::max());
}

TEST(AllFinite, SeesTheScaledElement) {
  TypedArray x = Gradient(1);
  EXPECT_TRUE(AllFinite(x.view(), 1.0f));
  x.Set(1000, 1e38f);
  EXPECT_TRUE(AllFinite(x.view(), 1.0f));
  EXPECT_FALSE(AllFinite(x.view(), 10.0f));
  EXPECT_TRUE(AllFinite(TypedArray(DType::kFloat32, 0).view(), 1.0f));
  std::vector<double> wide(10, 1e300);
  EXPECT_TRUE(AllFinite({wide.data(), DType::kFloat64, wide.size()}, 1.0f));
  wide[9] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(AllFinite({wide.data(), DType::kFloat64, wide.size()}, 1.0f));
}

}  // namespace
}  // namespace bdn
