#include "server/reply_encoder.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/normal_values.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;
using Kind = Contribution::Kind;
constexpr Key kKey = Key::Of(7, 0);

class ReplyEncoderTest : public ::testing::Test {
 protected:
  void Start(const KeyOptions& options) {
    options_ = options;
    plan_ = MakePlan(kKey, options);
    parts_ = MakeStateParts(*plan_);
  }
  void SetWeights(const Floats& values) {
    size_t begin = 0;
    for (size_t i = 0; i < options_.segments.size(); ++i) {
      const std::span<const float> part(values.data() + begin, options_.segments[i]);
      ASSERT_TRUE(SetPart(*plan_, StatePart::kWeights, i, std::as_bytes(part), &parts_).ok());
      begin += part.size();
    }
  }
  Contribution Of(Step step, const Floats& values, float weight = 1) {
    return {.kind = Kind::kPayload,
            .weight = weight,
            .learning_rate = rate_,
            .payload = MakePush(kKey, step, 0, values, options_).payload};
  }
  Contribution Without(Kind kind) { return {.kind = kind, .weight = 1, .learning_rate = rate_}; }
  absl::StatusOr<Reply> Close(Step step, std::vector<Contribution> by_rank) {
    Round round;
    round.Open(step, MakePlaces(static_cast<int>(by_rank.size())));
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      round.Add(*plan_, nullptr, PlaceAt(rank), std::move(by_rank[rank]));
    }
    return EncodeReply({.run_seed = run_seed_, .scratch = &scratch_}, *plan_, &round, &parts_);
  }
  // A round of two workers whose values follow from the step.
  absl::StatusOr<Reply> CloseStep(Step step) {
    size_t n = 0;
    for (const size_t segment : options_.segments) n += segment;
    return Close(step, {Of(step, Normal(n, 10 * step)), Of(step, Normal(n, 10 * step + 1))});
  }
  Floats ValuesIn(Step step, const Reply& reply) {
    Frame frame = MakeBare(FrameType::kReply, kKey, step, 0, 0);
    frame.payload = reply.payload;
    return ValuesOf(frame, options_);
  }

  KeyOptions options_;
  float rate_ = 0.5f;
  uint64_t run_seed_ = 0;
  std::shared_ptr<const KeyPlan> plan_;
  StateParts parts_;
  std::vector<double> scratch_;
};

std::string BytesOf(const Reply& reply) {
  return std::string(reinterpret_cast<const char*>(reply.payload.data()), reply.payload.size());
}

// A backup rests on this.
TEST_F(ReplyEncoderTest, TheSameContributionsOnTheSamePartsGiveTheSameReplyAndParts) {
  const KeyOptions cases[] = {
      {.pull = "ef(onebit)", .segments = {96, 40}},
      {.pull = "dither", .segments = {96, 40}},
      {.push = "randomk(ratio=0.5)", .pull = "randomk(ratio=0.5)", .segments = {96, 40}},
      {.pull = "delta(int4)", .segments = {96, 40}, .warmup = 1, .rule = "adamw"},
      {.pull = "sign", .segments = {96, 40}, .rule = "sign_momentum"},
  };
  for (const KeyOptions& options : cases) {
    SCOPED_TRACE(options.pull);
    Start(options);
    if (plan_->rule != nullptr) SetWeights(Normal(136, 1));
    for (Step step = 1; step <= 4; ++step) {
      const StateParts before = parts_;
      const auto reply = CloseStep(step);
      ASSERT_TRUE(reply.ok()) << reply.status();
      const StateParts after = std::exchange(parts_, before);
      scratch_.assign(1000, std::numeric_limits<double>::quiet_NaN());  // may hold anything
      const auto again = CloseStep(step);
      ASSERT_TRUE(again.ok()) << again.status();
      EXPECT_EQ(BytesOf(*again), BytesOf(*reply)) << step;
      EXPECT_EQ(again->base_step, reply->base_step);
      EXPECT_EQ(parts_, after) << step;
    }
  }
}

TEST_F(ReplyEncoderTest, DrawsByTheRunsSeed) {
  Start({.pull = "dither", .segments = {100}});
  const std::string first = BytesOf(CloseStep(1).value());
  EXPECT_EQ(BytesOf(CloseStep(1).value()), first);
  run_seed_ = 1;
  EXPECT_NE(BytesOf(CloseStep(1).value()), first);
}

TEST_F(ReplyEncoderTest, AddsInRankOrderAndDividesByTheWeights) {
  Start({.segments = {2}});
  const auto reply = Close(1, {Of(1, {1e8f, 1}), Of(1, {-1e8f, 2}, 0.5f), Of(1, {0.5f, 3}, 2.5f)});
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->flags, 0);
  EXPECT_EQ(reply->base_step, 0u);
  EXPECT_THAT(ValuesIn(1, *reply), ElementsAre(0.5f * 0.25f, 6 * 0.25f));
}

TEST_F(ReplyEncoderTest, AbsentContributionsCountInTheDenominator) {
  Start({.segments = {2}});
  const auto reply = Close(1, {Of(1, {4, 8}), Without(Kind::kAbsent)});
  EXPECT_THAT(ValuesIn(1, reply.value()), ElementsAre(2, 4));
}

TEST_F(ReplyEncoderTest, ARoundWithoutAResultHasAFlagAndMovesNothing) {
  const float huge = std::numeric_limits<float>::max();
  for (const char* rule : {"mean", "sgd(momentum=0.9)"}) {
    Start({.pull = rule == std::string("mean") ? "ef(onebit)" : "delta(int4)", .rule = rule});
    if (plan_->rule != nullptr) SetWeights({1, 2, 3, 4});
    ASSERT_TRUE(Close(1, {Of(1, {1, 2, 3, 4}), Of(1, {1, 2, 3, 4})}).ok());
    const StateParts before = parts_;
    const auto flags = [&](std::vector<Contribution> by_rank) {
      const auto reply = Close(2, std::move(by_rank));
      EXPECT_TRUE(reply.ok() && reply->payload.empty()) << reply.status();
      EXPECT_EQ(parts_, before) << rule;
      return reply.ok() ? reply->flags : 0;
    };
    EXPECT_EQ(flags({Without(Kind::kAbsent), Without(Kind::kAbsent)}), kFlagAbsent);
    EXPECT_EQ(flags({Of(2, {1, 1, 1, 1}, 0), Of(2, {1, 1, 1, 1}, 0)}), kFlagAbsent);
    EXPECT_EQ(flags({Of(2, {1, 1, 1, 1}), Without(Kind::kNonFinite)}), kFlagNonFinite);
    EXPECT_EQ(flags({Of(2, {huge, 1, 1, 1}), Of(2, {huge, 1, 1, 1})}), kFlagNonFinite);
  }
}

TEST_F(ReplyEncoderTest, KeepsWhatTheReplyLeavesOut) {
  Start({.pull = "ef(onebit)"});
  const auto reply = Close(1, {Of(1, {1, 2, 3, 4}), Of(1, {3, 4, -5, 6})});
  const Floats mean = {2, 3, -1, 5};
  const Floats told = ValuesIn(1, reply.value());
  for (size_t i = 0; i < mean.size(); ++i) EXPECT_EQ(parts_.residual[i], mean[i] - told[i]) << i;
  EXPECT_EQ(parts_.previous_learning_rate, rate_);
}

TEST_F(ReplyEncoderTest, StepsTheWeightsAndSaysWhichTheReplyBuildsOn) {
  Start({.rule = "sgd"});
  SetWeights({1, 2, 3, 4});
  parts_.weights_step = 5;
  const auto first = Close(7, {Of(7, {2, 2, 2, 2}), Of(7, {0, 0, 0, 0})});
  EXPECT_EQ(first.value().base_step, 5u);
  EXPECT_THAT(ValuesIn(7, *first), ElementsAre(0.5f, 1.5f, 2.5f, 3.5f));
  EXPECT_EQ(parts_.weights, ValuesIn(7, *first));
  EXPECT_EQ(parts_.segments[0].updates, 1u);
  EXPECT_EQ(Close(8, {Of(8, {2, 2, 2, 2})}).value().base_step, 7u);
}

TEST_F(ReplyEncoderTest, ADeltaMovesTheReplicaByWhatItTells) {
  Start({.pull = "delta(int4)", .segments = {64}, .rule = "sgd"});
  SetWeights(Normal(64, 1));
  const Floats before = parts_.replica;
  const Floats told = ValuesIn(1, CloseStep(1).value());
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(parts_.replica[i], before[i] + told[i]) << i;
  EXPECT_NE(parts_.replica, parts_.weights);
}

TEST_F(ReplyEncoderTest, TellsTheSignsOfARuleThatStepsByThem) {
  Start({.pull = "sign", .rule = "sign_momentum"});
  SetWeights({1, 1, 1, 1});
  const auto reply = Close(1, {Of(1, {3, -2, 0, 0.5f})});
  EXPECT_THAT(ValuesIn(1, reply.value()), ElementsAre(1, -1, 0, 1));
}

TEST_F(ReplyEncoderTest, WhatIsNotAllowedChangesNothing) {
  Start({.segments = {2, 2}, .rule = "adamw"});
  const auto refused = [&](absl::StatusCode code, const std::string& why) {
    const StateParts before = parts_;
    const absl::Status status = CloseStep(1).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(parts_, before);
  };
  refused(absl::StatusCode::kAborted, "no weights to update");
  SetWeights({1, 2, 3, 4});
  parts_.segments[1].has_weights = false;
  refused(absl::StatusCode::kAborted, "no weights to update");
  parts_.segments[1].has_weights = true;
  rate_ = -1;
  refused(absl::StatusCode::kInvalidArgument, "learning rate -1 is below 0");
}

TEST_F(ReplyEncoderTest, WeightsThatDivergeAreAnErrorAndStaySo) {
  Start({.rule = "sgd"});
  SetWeights({1, 2, 3, 4});
  rate_ = 1e30f;
  const absl::Status status = Close(1, {Of(1, {1e30f, 0, 0, 0})}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(std::isfinite(parts_.weights[0]));
  EXPECT_EQ(parts_.weights_step, 0u);
}

}  // namespace
}  // namespace bdn::testing
