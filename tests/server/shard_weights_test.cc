#include <cmath>
#include <limits>

#include "common/base/endian.h"
#include "common/wire/headers.h"
#include "compressors/memory/sign_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/normal_values.h"
#include "tests/support/shard_rig.h"

// Keys whose weights the server holds: setting and telling what it holds, and what replies carry.

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Key kKey = Key::Of(7, 0);
using Floats = std::vector<float>;

Buffer BytesOf(const Floats& values) { return Buffer::CopyOf(std::as_bytes(std::span(values))); }

Floats FloatsIn(ByteSpan bytes) {
  Floats values(bytes.size() / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadLittle<float>(bytes, i * sizeof(float));
  }
  return values;
}

class ShardWeightsTest : public ::testing::Test {
 protected:
  void Start(int workers, const KeyOptions& options) {
    options_ = options;
    outbox_.sent.clear();
    requests_ = 0;
    shard_ = ServerShard({.self = kServerNode});
    shard_.SetMembership(MakeMembership(workers));
    shard_.AddKey(MakePlan(kKey, options));
    shard_.SetCatalogueVersion(1);
  }
  const KeyPlan& Plan() { return *shard_.Find(kKey)->plan; }
  const DenseState& State() { return shard_.Find(kKey)->dense; }
  const StateParts& Parts() { return State().parts; }
  const SegmentedCodec& Layout() { return *Plan().codecs.pull; }
  size_t Elements() { return Layout().num_elements(); }

  // An init of a part of segment `segment`, not sent.
  Frame MakeInit(StatePart part, Buffer payload, Step step = 0, Rank rank = 0, size_t segment = 0) {
    return MakeFrame(AboutState(FrameType::kInit, part, segment, rank, step), std::move(payload));
  }
  FrameHeader AboutState(FrameType type, StatePart part, size_t segment, Rank rank, Step step) {
    FrameHeader header = StateHeader(type,
                                     {.part = part,
                                      .key = kKey,
                                      .num_elements = Elements(),
                                      .element_offset = Layout().segment_offset(segment)},
                                     step, ++requests_);
    StampHeader({.sender = WorkerNode(rank), .epoch = 1}, &header);
    return header;
  }
  void Send(const Frame& frame) { outbox_.Add(shard_.OnFrame(frame.header.sender, frame)); }
  void Set(StatePart part, const Floats& values, Step step = 0, size_t segment = 0) {
    Send(MakeInit(part, BytesOf(values), step, 0, segment));
    ASSERT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply) << Error(0);
  }
  // The weights of all segments.
  void SetWeights(const Floats& values, Step step = 0) {
    for (size_t i = 0; i < Layout().num_segments(); ++i) {
      const auto begin = values.begin() + Layout().segment_offset(i);
      Set(StatePart::kWeights, Floats(begin, begin + Layout().segment_elements(i)), step, i);
    }
  }
  const Frame& Fetch(StatePart part, size_t segment = 0, Rank rank = 0, Step step = 77) {
    Send(Frame{AboutState(FrameType::kFetch, part, segment, rank, step), {}});
    return *outbox_.LastTo(rank);
  }
  void Push(Rank rank, Step step, const Floats& values) {
    Frame push = MakePush(kKey, step, rank, values, options_);
    push.header.learning_rate = rate_;
    Send(push);
  }
  void PushFlagged(Rank rank, Step step, uint8_t flag) {
    Frame push = MakeBare(FrameType::kPush, kKey, step, rank, Elements(), flag);
    push.header.learning_rate = rate_;
    Send(push);
  }
  // Segment 0 alone, in `none`.
  void PushFirstSegment(Rank rank, Step step, const Floats& values) {
    const SegmentedCodec& codec = *Plan().codecs.push;
    std::vector<SegmentedCodec::Input> inputs(codec.num_segments());
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = {{values.data(), DType::kFloat32, codec.segment_elements(i)}, 1.0f, i == 0};
    }
    Buffer payload = Buffer::Allocate(codec.MaxEncodedBytes());
    const size_t used = codec.Encode(inputs, Draw(), payload.mutable_span()).value();
    Frame push = MakeBare(FrameType::kPush, kKey, step, rank, Elements());
    push.header.codec = static_cast<uint8_t>(codec.codec().id());
    push.header.learning_rate = rate_;
    Send(MakeFrame(push.header, payload.Prefix(used)));
  }
  absl::Status Error(Rank rank) { return ErrorOf(*outbox_.LastTo(rank)); }
  const Frame& Reply(Rank rank = 0) { return *outbox_.LastTo(rank); }

  KeyOptions options_;
  float rate_ = 0.5f;
  uint32_t requests_ = 0;
  Outbox outbox_;
  ServerShard shard_{{.self = kServerNode}};
};

// What a worker makes of replies: weights that it holds and the step that left them so.
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
    for (size_t i = 0; i < codec.num_segments(); ++i) {
      const size_t n = codec.segment_elements(i);
      const MutableView x{weights.data() + codec.segment_offset(i), DType::kFloat32, n};
      if (kind == ReplyKind::kDelta) {
        codec.DecodeAddSegment(payload, i, 1.0f, x);
      } else if (kind == ReplyKind::kWeights) {
        codec.DecodeSegment(payload, i, 1.0f, x);
      } else if (codec.Present(payload, i)) {
        const RuleSpec rule = RuleSpec::Parse(plan.entry.rule).value();
        Floats signs(n);
        codec.DecodeSegment(payload, i, 1.0f, {signs.data(), DType::kFloat32, n});
        ApplySigns(MakeSignStep(rule.option("eta"), rule.option("decay"), rate), signs.data(), n,
                   x.f32());
      }
    }
  }
};

TEST_F(ShardWeightsTest, SetsAndTellsEveryPartBySegment) {
  Start(2, {.pull = "delta(int4)", .segments = {3, 2}, .rule = "adamw"});
  const std::pair<StatePart, float> parts[] = {{StatePart::kWeights, 1},
                                               {StatePart::kReplica, 2},
                                               {StatePart::kMoment0, 3},
                                               {StatePart::kMoment1, 4}};
  for (const auto& [part, value] : parts) {
    Set(part, Floats(3, value), 5, 0);
    Set(part, Floats(2, 10 * value), 5, 1);
    EXPECT_EQ(Reply().header.request, requests_);
  }
  for (const auto& [part, value] : parts) {
    const Frame& first = Fetch(part, 0, 1);
    EXPECT_EQ(first.header.type, FrameType::kValue);
    EXPECT_EQ(first.header.step, 77u);
    EXPECT_EQ(first.header.base_step, 5u);
    EXPECT_EQ(first.header.part, part);
    EXPECT_EQ(first.header.request, requests_);
    EXPECT_EQ(FloatsIn(first.payload.span()), Floats(3, value));
    const Frame& second = Fetch(part, 1, 1);
    EXPECT_EQ(second.header.element_offset, 3u);
    EXPECT_EQ(FloatsIn(second.payload.span()), Floats(2, 10 * value));
  }
}

TEST_F(ShardWeightsTest, WeightsSetTheReplicaToo) {
  Start(1, {.pull = "delta(int4)", .rule = "sgd"});
  SetWeights({1, 2, 3, 4});
  EXPECT_THAT(FloatsIn(Fetch(StatePart::kReplica).payload.span()), ElementsAre(1, 2, 3, 4));
}

TEST_F(ShardWeightsTest, SetsAndTellsCountersBySegment) {
  Start(1, {.segments = {3, 2}, .rule = "adamw"});
  Send(MakeInit(StatePart::kCounters, EncodeCounters({12, 0.25f}), 3, 0, 1));
  ASSERT_EQ(Error(0), absl::OkStatus());
  const auto counters = [&](size_t segment) {  // told before there are weights
    return DecodeCounters(Fetch(StatePart::kCounters, segment).payload.span()).value();
  };
  EXPECT_EQ(counters(0), (StateCounters{0, 0.25f}));
  EXPECT_EQ(counters(1), (StateCounters{12, 0.25f}));
}

TEST_F(ShardWeightsTest, SetsAndTellsTheResidualOfAMean) {
  Start(1, {.pull = "ef(onebit)", .rule = "mean"});
  Set(StatePart::kResidual, {1, 2, 3, 4}, 6);
  const Frame& value = Fetch(StatePart::kResidual);
  EXPECT_THAT(FloatsIn(value.payload.span()), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(value.header.base_step, 6u);
  Push(0, 7, {0, 0, 0, 0});
  EXPECT_THAT(ValuesOf(Reply(), options_), ElementsAre(2.5f, 2.5f, 2.5f, 2.5f));
  Fetch(StatePart::kWeights);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kNotFound);
}

TEST_F(ShardWeightsTest, SaysWaitingUntilThereAreWeightsToTell) {
  Start(2, {.segments = {2, 2}, .rule = "sgd(momentum=0.9)"});
  EXPECT_THAT(RanksOf(Fetch(StatePart::kWeights, 0, 1)), IsEmpty());
  EXPECT_THAT(RanksOf(Fetch(StatePart::kMoment0, 0, 1)), IsEmpty());
  Set(StatePart::kWeights, {1, 2});
  EXPECT_THAT(FloatsIn(Fetch(StatePart::kWeights, 0, 1).payload.span()), ElementsAre(1, 2));
  EXPECT_THAT(RanksOf(Fetch(StatePart::kWeights, 1, 1)), IsEmpty());
}

TEST_F(ShardWeightsTest, AnswersARepeatedInitWithoutTakingItAgain) {
  Start(1, {.rule = "sgd"});
  const Frame init = MakeInit(StatePart::kWeights, BytesOf({1, 1, 1, 1}));
  Send(init);
  Push(0, 1, {1, 1, 1, 1});
  EXPECT_THAT(Parts().weights, ElementsAre(0.5f, 0.5f, 0.5f, 0.5f));
  Send(init);
  EXPECT_EQ(Reply().header.type, FrameType::kReply);
  EXPECT_EQ(Reply().header.request, 1u);
  EXPECT_THAT(Parts().weights, ElementsAre(0.5f, 0.5f, 0.5f, 0.5f));
}

TEST_F(ShardWeightsTest, RefusesInitsThatDoNotFitAndChangesNothing) {
  Start(2, {.segments = {3, 1}, .rule = "sgd"});
  SetWeights({1, 2, 3, 4}, 5);
  const auto refuse = [&](const Frame& frame, absl::StatusCode code, const std::string& why) {
    const Rank rank = static_cast<Rank>(frame.header.sender - 1);
    Send(frame);
    EXPECT_EQ(Error(rank).code(), code) << Error(rank);
    EXPECT_THAT(std::string(Error(rank).message()), HasSubstr(why));
    EXPECT_EQ(Reply(rank).header.request, frame.header.request);
    EXPECT_THAT(Parts().weights, ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(State().last_step, 5u);
    EXPECT_EQ(Parts().weights_step, 5u);
    EXPECT_EQ(State().last_init, 2u);
  };
  const auto init = [&](const Floats& values, Step step = 5, Rank rank = 0) {
    return MakeInit(StatePart::kWeights, BytesOf(values), step, rank);
  };
  using Code = absl::StatusCode;
  refuse(init({9, 9, 9}, 5, 1), Code::kAlreadyExists, "rank 0 has set it, and now rank 1 does");
  refuse(init({9, 9, 9}, 4), Code::kInvalidArgument, "step 4, but the server stands at step 5");
  refuse(init({9, 9}), Code::kInvalidArgument, "8 bytes for 3 elements");
  refuse(init({9, std::nanf(""), 9}), Code::kInvalidArgument, "element 1 is nan");
  refuse(init({9, 9, std::numeric_limits<float>::infinity()}), Code::kInvalidArgument, "is inf");
  refuse(MakeInit(StatePart::kMoment0, BytesOf({9, 9, 9}), 5), Code::kNotFound,
         "moment0 of tensor 'tensor'");
  refuse(MakeInit(StatePart::kReplica, BytesOf({9, 9, 9}), 5), Code::kNotFound, "replica");
  refuse(MakeInit(StatePart::kResidual, BytesOf({9, 9, 9}), 5), Code::kNotFound, "residual");
  refuse(MakeInit(StatePart::kCounters, BytesOf({9, 9, 9}), 5), Code::kInvalidArgument,
         "counters: 12 bytes");
  Frame frame = init({9, 9, 9});
  frame.header.element_offset = 1;
  refuse(frame, Code::kInvalidArgument, "no segment at element 1");
  frame = init({9, 9, 9});
  frame.header.num_elements = 3;
  refuse(frame, Code::kInvalidArgument, "has 4 elements, not 3");
  frame = init({9, 9, 9});
  frame.header.request = 0;
  refuse(frame, Code::kInvalidArgument, "count from 1");
  frame = init({9, 9, 9});
  frame.header.part = StatePart::kNone;
  refuse(frame, Code::kInvalidArgument, "must name a part");
  frame = init({9, 9, 9});
  frame.header.payload_crc ^= 1;
  refuse(frame, Code::kDataLoss, "crc");

  Push(0, 6, {1, 1, 1, 1});
  refuse(init({9, 9, 9}, 7), Code::kInvalidArgument, "a push of step 6 is under way");
  Push(1, 6, {1, 1, 1, 1});
  EXPECT_THAT(Parts().weights, ElementsAre(0.5f, 1.5f, 2.5f, 3.5f));
}

TEST_F(ShardWeightsTest, RefusesFetchesThatDoNotFit) {
  Start(1, {.rule = "sgd"});
  Fetch(StatePart::kMoment0);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("'tensor' has no moment0"));
  Frame fetch{AboutState(FrameType::kFetch, StatePart::kWeights, 0, 0, 1), {}};
  fetch.header.element_offset = 2;
  Send(fetch);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("no segment at element 2"));
  fetch.header.element_offset = 0;
  fetch.header.request = 0;
  Send(fetch);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("count from 1"));
  Send(MakeBare(FrameType::kFetch, kKey, 1, 0, 4));
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("must name a part"));
  outbox_.Add(shard_.OnFrame(WorkerNode(5), MakeBare(FrameType::kFetch, kKey, 1, 5, 4)));
  EXPECT_EQ(Error(5).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ShardWeightsTest, BytesKeysHaveNoParts) {
  Start(1, {.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast});
  for (const FrameType type : {FrameType::kInit, FrameType::kFetch}) {
    Frame frame = MakeBare(type, kKey, 1, 0, 4);
    frame.header.part = StatePart::kWeights;
    Send(frame);
    EXPECT_THAT(std::string(Error(0).message()), HasSubstr("of broadcast tensor 'tensor' are 0"));
  }
}

TEST_F(ShardWeightsTest, APushBeforeTheWeightsFailsTheRoundAndTheyMayStillBeSet) {
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

TEST_F(ShardWeightsTest, StepsBehindTheOneThatWasSetAreOver) {
  Start(1, {.rule = "sgd"});
  SetWeights({1, 1, 1, 1}, 9);
  Push(0, 9, {1, 1, 1, 1});
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("was set at step 9"));
  Push(0, 10, {1, 1, 1, 1});
  EXPECT_THAT(ValuesOf(Reply(), options_), ElementsAre(0.5f, 0.5f, 0.5f, 0.5f));
}

TEST_F(ShardWeightsTest, RepliesWithTheWeightsWholeOrRounded) {
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
TEST_F(ShardWeightsTest, WhoFollowsTheRepliesHoldsTheReplica) {
  struct Case {
    const char* pull;
    const char* rule;
    uint64_t warmup;
  };
  for (const Case& c :
       {Case{"delta(int4)", "sgd(momentum=0.9)", 0}, Case{"delta(topk(ratio=0.1))", "adamw", 0},
        Case{"delta(int4)", "adamw", 3}, Case{"none", "slowmo", 0},
        Case{"sign", "sign_momentum", 0}, Case{"sign", "sign_momentum", 2}}) {
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
      EXPECT_EQ(follower.weights, is_delta ? Parts().replica : Parts().weights) << step;
      EXPECT_EQ(follower.weights == before, Reply().header.flags != 0) << step;
    }
    if (is_delta) {
      EXPECT_NE(Parts().replica, Parts().weights);
    }
    EXPECT_EQ(Parts().segments[0].updates, 9u);  // but for steps 3, 6 and 8
  }
}

TEST_F(ShardWeightsTest, SignsLeaveTheWeightsAsWholeRepliesDo) {
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

TEST_F(ShardWeightsTest, SegmentsThatNobodyHadKeepTheirWeightsMomentsAndCount) {
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
  const auto half = [](const Floats& x, size_t at) {
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

TEST_F(ShardWeightsTest, WhatIsNotFiniteOrNotAllowedChangesNothing) {
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

TEST_F(ShardWeightsTest, WeightsThatDivergeFailTheRoundAndSayTheRate) {
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

TEST_F(ShardWeightsTest, TellsTheReplicaThatAReplyLeftUntilTheNextOne) {
  Start(2, {.pull = "delta(int4)", .segments = {64}, .rule = "sgd"});
  SetWeights(Normal(64, 1));
  for (const Rank rank : {0, 1}) Push(rank, 1, Normal(64, 2 + rank));
  Push(0, 2, Normal(64, 5));  // worker 1 has lost its reply
  const Frame& value = Fetch(StatePart::kReplica, 0, 1);
  EXPECT_EQ(value.header.base_step, 1u);
  EXPECT_EQ(FloatsIn(value.payload.span()), Parts().replica);
}

}  // namespace
}  // namespace bdn::testing
