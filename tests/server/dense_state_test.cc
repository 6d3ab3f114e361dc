#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"
#include "tests/support/normal_values.h"

// Setting and telling what a server holds of a dense key, between its rounds.

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using DenseStateTest = ShardFixture;

TEST_F(DenseStateTest, SetsAndTellsEveryPartBySegment) {
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

TEST_F(DenseStateTest, RefusesARequestNumberThatCannotBeNext) {
  Start(1, {.rule = "sgd"});
  requests_ = 1u << 30;
  Send(MakeInit(StatePart::kWeights, BytesOf({1, 2, 3, 4}), 0, 0, 0));
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kInvalidArgument);
  requests_ = 0;
  SetWeights({5, 6, 7, 8});
  EXPECT_THAT(FloatsIn(Fetch(StatePart::kWeights).payload.span()), ElementsAre(5, 6, 7, 8));
}

// They would go on with the replica that they have, which is of the same step.
TEST_F(DenseStateTest, RefusesWeightsAsOfAStepThatWorkersHaveAReplyOf) {
  Start(1, {.pull = "delta(int8)", .rule = "sgd"});
  SetWeights({1, 2, 3, 4});
  SetWeights({1, 2, 3, 5});  // nobody has heard of those
  Push(0, 1, {1, 1, 1, 1});
  Send(MakeInit(StatePart::kWeights, BytesOf({1, 2, 3, 4}), 1, 0, 0));
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("workers have the reply of step 1"));
  Set(StatePart::kWeights, {1, 2, 3, 4}, 2, 0);
}

TEST_F(DenseStateTest, ToBeToldChangesNothing) {
  Start(1, {.pull = "ef(onebit)"});
  const StateParts before = Parts();
  EXPECT_THAT(FloatsIn(Fetch(StatePart::kResidual).payload.span()), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(Parts(), before);
}

TEST_F(DenseStateTest, WeightsSetTheReplicaToo) {
  Start(1, {.pull = "delta(int4)", .rule = "sgd"});
  SetWeights({1, 2, 3, 4});
  EXPECT_THAT(FloatsIn(Fetch(StatePart::kReplica).payload.span()), ElementsAre(1, 2, 3, 4));
}

TEST_F(DenseStateTest, SetsAndTellsCountersBySegment) {
  Start(1, {.segments = {3, 2}, .rule = "adamw"});
  Send(MakeInit(StatePart::kCounters, EncodeCounters({12, 0.25f}), 3, 0, 1));
  ASSERT_EQ(Error(0), absl::OkStatus());
  const auto counters = [&](size_t segment) {  // told before there are weights
    return DecodeCounters(Fetch(StatePart::kCounters, segment).payload.span()).value();
  };
  EXPECT_EQ(counters(0), (StateCounters{0, 0.25f}));
  EXPECT_EQ(counters(1), (StateCounters{12, 0.25f}));
}

TEST_F(DenseStateTest, SetsAndTellsTheResidualOfAMean) {
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

TEST_F(DenseStateTest, SaysWaitingUntilThereAreWeightsToTell) {
  Start(2, {.segments = {2, 2}, .rule = "sgd(momentum=0.9)"});
  EXPECT_THAT(RanksOf(Fetch(StatePart::kWeights, 0, 1)), IsEmpty());
  EXPECT_THAT(RanksOf(Fetch(StatePart::kMoment0, 0, 1)), IsEmpty());
  Set(StatePart::kWeights, {1, 2});
  EXPECT_THAT(FloatsIn(Fetch(StatePart::kWeights, 0, 1).payload.span()), ElementsAre(1, 2));
  EXPECT_THAT(RanksOf(Fetch(StatePart::kWeights, 1, 1)), IsEmpty());
}

TEST_F(DenseStateTest, AnswersARepeatedInitWithoutTakingItAgain) {
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

TEST_F(DenseStateTest, RefusesInitsThatDoNotFitAndChangesNothing) {
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
  refuse(init({9, 9, 9}, kMaxStep + 1), Code::kInvalidArgument, "is over");
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

// However many ask, and even while the first answers are still on their way.
TEST_F(DenseStateTest, SparesAPartToWhoHasItUntilItChanges) {
  Start(1, {.pull = "delta(none)", .segments = {4}, .rule = "sgd"});
  const Floats weights = {1, 2, 3, 4};
  SetWeights(weights);
  const auto fetch_holding = [&](const Floats& held) -> const Frame& {
    const Buffer digest = Buffer::CopyOf(DigestOf(std::as_bytes(std::span(held))));
    Send(MakeFrame(AboutState(FrameType::kFetch, StatePart::kReplica, 0, 0, 0), digest));
    return Reply();
  };
  for (int times = 0; times < 2; ++times) {
    const Frame& same = fetch_holding(weights);
    EXPECT_EQ(same.header.type, FrameType::kValue);
    EXPECT_EQ(same.header.flags, kFlagSame);
    EXPECT_TRUE(same.payload.empty());
  }
  const Frame& other = fetch_holding({1, 2, 3, 5});
  EXPECT_EQ(other.header.flags, 0);
  EXPECT_EQ(FloatsIn(other.payload.span()), weights);
  Push(0, 1, {1, 1, 1, 1});
  const Frame& stepped = fetch_holding(weights);
  EXPECT_EQ(stepped.header.base_step, 1u);
  EXPECT_EQ(FloatsIn(stepped.payload.span()), (Floats{0.5f, 1.5f, 2.5f, 3.5f}));
}

TEST_F(DenseStateTest, RefusesADigestOfAnotherSize) {
  Start(1, {.rule = "sgd"});
  SetWeights({1, 2, 3, 4});
  Send(MakeFrame(AboutState(FrameType::kFetch, StatePart::kWeights, 0, 0, 0),
                 Buffer::CopyOf(std::vector<std::byte>(5))));
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("a digest of 32 bytes, not 5"));
}

TEST_F(DenseStateTest, TellsAllWhoAskTheSameBlock) {
  Start(2, {.pull = "delta(int4)", .rule = "adamw"});
  SetWeights({1, 2, 3, 4});
  using enum StatePart;
  for (const StatePart part : {kWeights, kReplica, kMoment0}) {
    const Buffer first = Fetch(part).payload;
    for (int i = 0; i < 1000; ++i) {
      ASSERT_EQ(Fetch(part, 0, i % 2).payload.data(), first.data());
    }
  }
  const Buffer before = Fetch(kReplica).payload;
  const Buffer weights = Fetch(kWeights).payload;
  const Floats old = FloatsIn(weights.span());
  Push(0, 1, {1, 1, 1, 1});
  Push(1, 1, {1, 1, 1, 1});
  EXPECT_NE(Fetch(kReplica).payload.data(), before.data()) << "the state has changed";
  EXPECT_EQ(FloatsIn(weights.span()), old) << "who reads it keeps what he was told";
  EXPECT_NE(FloatsIn(Fetch(kWeights).payload.span()), old);
  outbox_.sent.clear();
}

TEST_F(DenseStateTest, RefusesFetchesThatDoNotFit) {
  Start(1, {.rule = "sgd"});
  Fetch(StatePart::kMoment0);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("'tensor' has no moment0"));
  EXPECT_EQ(shard_.stats().refused, 0u) << "a question, as checkpoints ask it";
  Frame fetch{AboutState(FrameType::kFetch, StatePart::kWeights, 0, 0, 1), {}};
  fetch.header.element_offset = 2;
  Send(fetch);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("no segment at element 2"));
  EXPECT_EQ(shard_.stats().refused, 1u);
  fetch.header.element_offset = 0;
  fetch.header.request = 0;
  Send(fetch);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("count from 1"));
  Send(MakeBare(FrameType::kFetch, kKey, 1, 0, 4));
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("must name a part"));
  Send(MakeBare(FrameType::kFetch, kKey, 1, 5, 4));
  EXPECT_EQ(Error(5).code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(DenseStateTest, StepsBehindTheOneThatWasSetAreOver) {
  Start(1, {.rule = "sgd"});
  SetWeights({1, 1, 1, 1}, 9);
  Push(0, 9, {1, 1, 1, 1});
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("was set at step 9"));
  Push(0, 10, {1, 1, 1, 1});
  EXPECT_THAT(ValuesOf(Reply(), options_), ElementsAre(0.5f, 0.5f, 0.5f, 0.5f));
}

TEST_F(DenseStateTest, TellsTheReplicaThatAReplyLeftUntilTheNextOne) {
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
