#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "compressors/memory/sign_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"
#include "tests/support/normal_values.h"

// Rounds of keys whose weights the server holds: what moves them, and what replies carry.

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// A worker that follows the replies: its weights, and the step that left them so.
struct Follower {
  Floats weights;
  Step step = 0;

  void Take(const Frame& reply, const KeyPlan& plan, float rate) {
    ASSERT_EQ(ErrorOf(reply), absl::OkStatus());
    if (reply.header.flags != 0) return;
    ASSERT_EQ(reply.header.base_step, step);
    step = reply.header.step;
    const SegmentedCodec& codec = plan.codecs.Pull(step);
    const ReplyKind kind = plan.codecs.Reply(step);
    const ByteSpan payload = reply.payload.span();
    ASSERT_EQ(codec.Validate(payload), absl::OkStatus());
    SegmentedCodec::Segments segments(codec, payload);
    for (size_t i = 0; i < codec.num_segments(); ++i) {
      const std::optional<ByteSpan> of_segment = segments.Next();
      if (!of_segment.has_value()) continue;
      const size_t n = codec.segment_elements(i);
      const MutableView x{weights.data() + codec.segment_offset(i), DType::kFloat32, n};
      if (kind == ReplyKind::kDelta) {
        codec.codec().DecodeAdd(*of_segment, 1.0f, x);
      } else if (kind == ReplyKind::kWeights) {
        codec.codec().Decode(*of_segment, 1.0f, x);
      } else {
        const RuleSpec rule = RuleSpec::Parse(plan.entry.rule).value();
        Floats signs(n);
        codec.codec().Decode(*of_segment, 1.0f, {signs.data(), DType::kFloat32, n});
        ApplySigns(MakeSignStep(rule.option("eta"), rule.option("decay"), rate), signs.data(), n,
                   x.f32());
      }
    }
  }
};

using WeightsRoundTest = ShardFixture;

TEST_F(WeightsRoundTest, APushBeforeTheWeightsFailsTheRoundAndTheyMayStillBeSet) {
  Start(2, {.rule = "sgd"});
  Push(0, 1, {1, 1, 1, 1});
  Push(1, 1, {1, 1, 1, 1});
  for (const Rank rank : {0, 1}) {
    EXPECT_EQ(Error(rank).code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(Error(rank).message()),
                HasSubstr("tensor 'tensor': the server has no"));
  }
  SetWeights({1, 1, 1, 1}, 1);
  Push(0, 2, {1, 1, 1, 1});
  Push(1, 2, {1, 1, 1, 1});
  EXPECT_THAT(ValuesOf(Reply(1), options_), ElementsAre(0.5f, 0.5f, 0.5f, 0.5f));
}

TEST_F(WeightsRoundTest, ARuleThatIsSetBetweenStepsHoldsFromTheNextOneOn) {
  Start(1, {.segments = {3, 1}, .rule = "sgd(decay=0.5)"});
  SetWeights({1, 2, 3, 4});
  Floats x = {1, 2, 3, 4};
  Floats m(4, 0.0f);
  Step step = 0;
  // As torch has it: a buffer that begins with a momentum, stays without one, and goes on.
  for (const float momentum : {0.0f, 0.5f, 0.5f, 0.0f, 0.25f}) {
    const std::string rule = absl::StrFormat("sgd(momentum=%g,decay=0.25)", momentum);
    Send(MakeInit(StatePart::kRule, Buffer::CopyOf(std::as_bytes(std::span(rule))), step, 0));
    ASSERT_EQ(Reply().header.type, FrameType::kReply);
    EXPECT_EQ(State().last_step, step);
    Push(0, ++step, {1, 1, 1, 1});
    for (size_t i = 0; i < x.size(); ++i) {
      const float g = 1 + 0.25f * x[i];
      if (momentum != 0) m[i] = momentum * m[i] + g;
      x[i] -= rate_ * (momentum != 0 ? m[i] : g);
    }
    EXPECT_THAT(ValuesOf(Reply(), options_), Pointwise(FloatNear(1e-6f), x)) << rule;
  }
  Push(0, ++step, {0, 0, 0, 0});
  Send(MakeInit(StatePart::kRule, Buffer::CopyOf(std::as_bytes(std::span("adamw", 5))), step, 0));
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("its numbers may change, not its kind"));
}

TEST_F(WeightsRoundTest, RepliesWithTheWeightsWholeOrRounded) {
  for (const char* pull : {"none", "int4"}) {
    Start(2, {.pull = pull, .segments = {96, 64}, .rule = "sgd(momentum=0.9)"});
    Floats x = Normal(160, 1);
    Floats m(160, 0.0f);
    SetWeights(x);
    for (Step step = 1; step <= 5; ++step) {
      const Floats a = Normal(160, 10 * step);
      const Floats b = Normal(160, 10 * step + 1);
      Push(1, step, b);
      Push(0, step, a);
      for (size_t i = 0; i < x.size(); ++i) {
        m[i] = 0.9f * m[i] + (a[i] + b[i]) * 0.5f;
        x[i] -= rate_ * m[i];
      }
      EXPECT_EQ(Parts().weights, x) << pull;
      EXPECT_EQ(Parts().moments, m) << pull;
      const Floats told = ValuesOf(Reply(), options_);
      if (options_.pull == "none") {
        EXPECT_EQ(told, x);
      }
      for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(told[i], x[i], 2.0f) << pull;
    }
  }
}

// Also through absent, non-finite and failed rounds, which move nothing.
TEST_F(WeightsRoundTest, WhoFollowsTheRepliesHoldsTheReplica) {
  struct Case {
    const char* pull;
    const char* rule;
    uint64_t warmup;
  };
  for (const Case& c :
       {Case{"delta(int4)", "sgd(momentum=0.9)", 0}, Case{"delta(topk(ratio=0.1))", "adamw", 0},
        Case{"delta(int4)", "adamw", 3}, Case{"none", "slowmo", 0},
        Case{"delta(int4)", "prox(penalty=scad,theta=2)", 0}, Case{"sign", "sign_momentum", 0},
        Case{"sign", "sign_momentum", 2}}) {
    SCOPED_TRACE(c.pull);
    Start(2, {.pull = c.pull, .segments = {96, 40}, .warmup = c.warmup, .rule = c.rule});
    const Floats start = Normal(136, 1);
    SetWeights(start, 0);
    Follower follower{start};
    const bool is_delta = Plan().codecs.reply == ReplyKind::kDelta;
    for (Step step = 1; step <= 12; ++step) {
      Push(0, step, Normal(136, 10 * step));
      if (step % 5 == 3) {
        PushFlagged(1, step, kFlagNonFinite);
        EXPECT_EQ(Reply().header.flags, kFlagNonFinite);
      } else if (step == 6) {
        KeyOptions other = options_;
        other.push = "bf16";
        Send(MakePush(kKey, step, 1, Normal(136, step), other));
        EXPECT_EQ(Error(0).code(), absl::StatusCode::kInvalidArgument);
        continue;
      } else if (step == 9) {
        PushFlagged(1, step, kFlagAbsent);
      } else {
        Push(1, step, Normal(136, 10 * step + 1));
      }
      const Floats before = follower.weights;
      follower.Take(Reply(1), Plan(), rate_);
      const Floats weights(Parts().weights.begin(), Parts().weights.end());
      EXPECT_EQ(follower.weights, is_delta ? Parts().replica : weights) << step;
      EXPECT_EQ(follower.weights == before, Reply().header.flags != 0) << step;
    }
    if (is_delta) {
      EXPECT_NE(Parts().replica, Parts().weights);
    }
    EXPECT_EQ(Parts().segments[0].updates, 9u);  // but for steps 3, 6 and 8
  }
}

TEST_F(WeightsRoundTest, SignsLeaveTheWeightsAsWholeRepliesDo) {
  for (const char* rule : {"sign_momentum", "sign_momentum(decay=0,eta=3)"}) {
    Floats last[2];
    for (const bool signs : {false, true}) {
      Start(1, {.pull = signs ? "sign" : "none", .segments = {50}, .rule = rule});
      Floats start = Normal(50, 1);
      start[7] = -0.0f;
      SetWeights(start);
      Follower follower{start};
      for (Step step = 1; step <= 10; ++step) {
        rate_ = 0.1f / static_cast<float>(step);
        Floats push = Normal(50, step);
        for (size_t i = 0; i < 50; i += 7) push[i] = 0;
        Push(0, step, push);
        follower.Take(Reply(), Plan(), rate_);
      }
      last[signs] = follower.weights;
      EXPECT_EQ(last[signs], Parts().weights);
      if (options_.rule != "sign_momentum") {
        EXPECT_EQ(last[signs][0], start[0]);
      }
    }
    EXPECT_EQ(last[0], last[1]);
  }
}

TEST_F(WeightsRoundTest, SegmentsThatNobodyHadKeepTheirWeightsMomentsAndCount) {
  Start(2, {.pull = "delta(int4)", .segments = {32, 32}, .rule = "adamw"});
  const Floats start = Normal(64, 1);
  SetWeights(start);
  Follower follower{start};
  for (const Rank rank : {0, 1}) Push(rank, 1, Normal(64, 2 + rank));
  follower.Take(Reply(), Plan(), rate_);
  const StateParts before = Parts();
  PushFirstSegment(0, 2, Normal(64, 5));
  PushFlagged(1, 2, kFlagAbsent);
  follower.Take(Reply(), Plan(), rate_);
  const auto half = [](std::span<const float> x, size_t at) {
    return Floats(x.begin() + at, x.begin() + at + 32);
  };
  EXPECT_FALSE(Layout().Present(Reply().payload.span(), 1));
  EXPECT_NE(half(Parts().weights, 0), half(before.weights, 0));
  EXPECT_EQ(half(Parts().weights, 32), half(before.weights, 32));
  EXPECT_EQ(half(Parts().replica, 32), half(before.replica, 32));
  EXPECT_EQ(half(Parts().moments, 32), half(before.moments, 32));
  EXPECT_EQ(half(Parts().moments, 96), half(before.moments, 96));
  EXPECT_EQ(Parts().segments[0].updates, 2u);
  EXPECT_EQ(Parts().segments[1].updates, 1u);
  EXPECT_EQ(follower.weights, Parts().replica);
}

TEST_F(WeightsRoundTest, WhatIsNotFiniteOrNotAllowedChangesNothing) {
  Start(2, {.pull = "delta(int4)", .rule = "sgd(momentum=0.9)"});
  SetWeights({1, 2, 3, 4});
  for (const Rank rank : {0, 1}) Push(rank, 1, {1, 1, 1, 1});
  const StateParts before = Parts();
  const auto unchanged = [&] {
    EXPECT_EQ(Parts().weights, before.weights);
    EXPECT_EQ(Parts().replica, before.replica);
    EXPECT_EQ(Parts().moments, before.moments);
    EXPECT_EQ(Parts().segments[0].updates, 1u);
    EXPECT_EQ(Parts().weights_step, 1u);
  };
  Push(0, 2, {1, 1, 1, 1});
  PushFlagged(1, 2, kFlagNonFinite);
  EXPECT_EQ(Reply().header.flags, kFlagNonFinite);
  unchanged();
  const float huge = std::numeric_limits<float>::max();
  for (const Rank rank : {0, 1}) Push(rank, 3, {huge, 0, 0, 0});
  EXPECT_EQ(Reply().header.flags, kFlagNonFinite);
  unchanged();
  for (const Rank rank : {0, 1}) {  // the sum is finite, the mean is not
    Frame push = MakePush(kKey, 4, rank, {1e30f, 0, 0, 0}, options_);
    push.header.weight = 1e-10f;
    Send(push);
  }
  EXPECT_EQ(Reply().header.flags, kFlagNonFinite);
  unchanged();
  for (const Rank rank : {0, 1}) PushFlagged(rank, 5, kFlagAbsent);
  EXPECT_EQ(Reply().header.flags, kFlagAbsent);
  unchanged();
  rate_ = -0.1f;
  for (const Rank rank : {0, 1}) Push(rank, 6, {1, 1, 1, 1});
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Error(1).message()), HasSubstr("learning rate -0.1 is below 0"));
  unchanged();
  rate_ = 0.0f;
  for (const Rank rank : {0, 1}) Push(rank, 7, {1, 1, 1, 1});
  EXPECT_EQ(Error(0), absl::OkStatus());
  EXPECT_EQ(Reply().header.base_step, 1u);
}

TEST_F(WeightsRoundTest, WeightsThatDivergeFailTheRoundAndSayTheRate) {
  Start(1, {.rule = "sgd"});
  SetWeights({1, 2, 3, 4});
  rate_ = 1e30f;
  Push(0, 1, {1e30f, 0, 0, 0});
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("no longer finite"));
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("learning rate was 1e+30"));
  SetWeights({1, 2, 3, 4}, 1);  // and may be set again
  rate_ = 1;
  Push(0, 2, {1, 1, 1, 1});
  EXPECT_THAT(ValuesOf(Reply(), options_), ElementsAre(0, 1, 2, 3));
}

// With the codec none a reply is the block of the weights. A reader of an old block keeps it;
// without readers the weights stay in their block.
TEST_F(WeightsRoundTest, AReplyOfWholeWeightsIsTheirBlock) {
  Start(1, {.segments = {64}, .rule = "adamw"});
  SetWeights(Normal(64, 1));
  Push(0, 1, Normal(64, 2));
  EXPECT_EQ(Reply().payload.data(), Parts().weights.bytes().data());
  EXPECT_EQ(shard_.held().replies, 0u);
  EXPECT_EQ(shard_.held().weights, 64 * sizeof(float));
  outbox_.sent.clear();
  const float* const place = Parts().weights.data();
  Push(0, 2, Normal(64, 3));
  EXPECT_EQ(Parts().weights.data(), place);
  const Buffer read = Reply().payload;
  const Floats told = FloatsIn(read.span());
  Push(0, 3, Normal(64, 4));
  EXPECT_NE(Parts().weights.data(), place);
  EXPECT_EQ(FloatsIn(read.span()), told);
  // An init between steps leaves the kept reply alone, too.
  const Floats third = FloatsIn(Reply().payload.span());
  outbox_.sent.clear();
  Set(StatePart::kWeights, Normal(64, 5), 3);
  Push(0, 3, Normal(64, 4));
  EXPECT_EQ(FloatsIn(Reply().payload.span()), third);
}

}  // namespace
}  // namespace bdn::testing
