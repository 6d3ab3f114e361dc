// A worker is lost amid a step, and the next epoch has a vacant rank. Rounds and broadcasts then go
// by place, while errors, draws and waiting frames go by rank. Their bits are those of a job that
// never had the lost worker's push of the open step.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RosterGapTest : public ShardFixture {
 protected:
  // The job goes on with these ranks.
  void GoOnWith(const std::vector<Rank>& ranks) {
    outbox_.Add(shard_.SetMembership(MembershipOf(ranks, ++epoch_)));
  }
  void PushNow(Rank rank, Step step, const Floats& values) {
    Frame push = MakePush(kKey, step, rank, values, options_);
    push.header.epoch = epoch_;
    push.header.learning_rate = rate_;
    Send(push);
  }
  void BareNow(FrameType type, Rank rank, Step step, uint8_t flags = 0) {
    Frame bare = MakeBare(type, kKey, step, rank, Elements(), flags);
    bare.header.epoch = epoch_;
    bare.header.learning_rate = rate_;
    Send(bare);
  }
  void InitNow(Rank rank, Step step, const std::string& bytes) {
    Frame bare = MakeBare(FrameType::kInit, kKey, step, rank, Elements());
    bare.header.epoch = epoch_;
    Send(MakeFrame(bare.header, Buffer::CopyOf(std::as_bytes(std::span(bytes)))));
  }
  std::string Value(Rank rank) {
    const Frame& last = Reply(rank);
    if (last.header.type != FrameType::kValue) return "";
    return std::string(reinterpret_cast<const char*>(last.payload.data()), last.payload.size());
  }

  Epoch epoch_ = 1;
};

TEST_F(RosterGapTest, TheOpenRoundBeginsAnewWithoutTheLostWorker) {
  Start(3);
  Push(1, 1, {9, 9, 9, 9});
  Push(2, 1, {3, 3, 3, 3});
  GoOnWith({0, 2});
  EXPECT_FALSE(State().round.is_open());
  PushNow(2, 1, {3, 3, 3, 3});
  PushNow(0, 1, {1, 1, 1, 1});
  EXPECT_THAT(Result(0), ElementsAre(2, 2, 2, 2)) << "the mean of those who are left";
  EXPECT_THAT(Result(2), ElementsAre(2, 2, 2, 2));
  for (const Outgoing& sent : outbox_.sent) EXPECT_NE(sent.to, WorkerNode(1));
}

TEST_F(RosterGapTest, AClosedStepIsAnsweredAndTheLostWorkersLateFramesChangeNothing) {
  Start(3);
  for (const Rank rank : {0, 1, 2}) Push(rank, 1, {3, 3, 3, 3});
  GoOnWith({0, 2});
  Probe(2, 1);  // of the epoch that is over
  EXPECT_THAT(Result(2), ElementsAre(3, 3, 3, 3));
  Push(1, 2, {9, 9, 9, 9});
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kFailedPrecondition);
  PushNow(1, 2, {9, 9, 9, 9});  // it stamps the new epoch, which it cannot know
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(State().round.is_open());
}

TEST_F(RosterGapTest, BitsAreThoseOfAJobOfTheWorkersThatAreLeft) {
  for (const char* pull : {"none", "ef(onebit)", "fp16"}) {
    const KeyOptions options{.pull = pull, .segments = {64}};
    Start(2, options);
    const auto values = [](Rank rank, Step step) {
      Floats all(64);
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] = 0.37f * static_cast<float>(i) - 1.1f * rank * static_cast<float>(step % 3);
      }
      return all;
    };
    for (Step step = 1; step <= 4; ++step) {
      Push(0, step, values(0, step));
      Push(1, step, values(2, step));
    }
    const Floats expected = Result(0);
    const Floats residual = Parts().residual;

    epoch_ = 1;
    Start(3, options);
    Push(1, 1, values(1, 1));
    GoOnWith({0, 2});
    for (Step step = 1; step <= 4; ++step) {
      PushNow(2, step, values(2, step));  // out of order: it waits for the lower place
      PushNow(0, step, values(0, step));
    }
    EXPECT_EQ(Result(2), expected) << pull;
    EXPECT_EQ(Parts().residual, residual) << pull;
  }
}

TEST_F(RosterGapTest, WaitingFramesAndErrorsNameRanks) {
  Start(4);
  GoOnWith({0, 2, 3});
  PushNow(3, 1, {1, 1, 1, 1});
  BareNow(FrameType::kProbe, 3, 1);
  EXPECT_THAT(RanksOf(Reply(3)), ElementsAre(0, 2));
  BareNow(FrameType::kProbe, 2, 1);
  EXPECT_THAT(RanksOf(Reply(2)), ElementsAre(0, 2)) << "its own among them: it pushes again";
  PushNow(2, 2, {1, 1, 1, 1});
  EXPECT_THAT(std::string(Error(0).message()),
              HasSubstr("rank 3 is at step 1 and rank 2 at step 2"));
}

TEST_F(RosterGapTest, TheResultThatOneDoesWithoutIsLeftOutForThatOne) {
  Start(3);
  GoOnWith({0, 2});
  BareNow(FrameType::kPush, 2, 1, kFlagAbsent | kFlagUnwanted);
  PushNow(0, 1, {2, 2, 2, 2});
  EXPECT_THAT(Result(0), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Reply(2).payload.size(), 0u);
  EXPECT_EQ(Reply(2).header.flags & kFlagUnwanted, kFlagUnwanted);
}

TEST_F(RosterGapTest, AWorkerThatLeavesIsStillMissedAfterAnother) {
  Start(4);
  outbox_.Add(shard_.SetLeaving({3}));
  GoOnWith({0, 2, 3});
  PushNow(0, 1, {1, 1, 1, 1});
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("worker 3 is leaving"));
}

TEST_F(RosterGapTest, AWorkerThatLeavesAfterItsPushPushesAgain) {
  Start(4);
  Push(3, 1, {7, 7, 7, 7});
  outbox_.Add(shard_.SetLeaving({3}));
  GoOnWith({0, 2, 3});
  PushNow(0, 1, {1, 1, 1, 1});
  EXPECT_EQ(outbox_.LastTo(3), nullptr) << "nobody was told of an error";
  GoOnWith({0, 3});  // once more, before it came to it
  PushNow(0, 1, {1, 1, 1, 1});
  PushNow(3, 1, {7, 7, 7, 7});
  EXPECT_THAT(Result(0), ElementsAre(4, 4, 4, 4));
  PushNow(0, 2, {1, 1, 1, 1});  // but this step it never pushed
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
}

TEST_F(RosterGapTest, AnotherWorkerMaySetWhatALostOneHasSet) {
  Start(3, {.rule = "sgd"});
  Send(MakeInit(StatePart::kWeights, BytesOf({1, 1, 1, 1}), 0, /*rank=*/0));
  EXPECT_EQ(Reply(0).header.type, FrameType::kReply);
  const auto set = [&](Rank rank, const Floats& weights) {
    Frame init = MakeInit(StatePart::kWeights, BytesOf(weights), 0, rank);
    init.header.epoch = epoch_;
    init.header.request = 1;  // each worker counts its own
    Send(init);
  };
  set(2, {2, 2, 2, 2});
  EXPECT_EQ(Error(2).code(), absl::StatusCode::kAlreadyExists);
  GoOnWith({1, 2});
  set(2, {2, 2, 2, 2});
  EXPECT_EQ(Reply(2).header.type, FrameType::kReply);
  EXPECT_THAT(FloatsIn(Parts().weights.bytes().span()), ElementsAre(2, 2, 2, 2));
  set(1, {3, 3, 3, 3});
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(RosterGapTest, ABroadcastWaitsNoMoreForALostWorker) {
  Start(3, {.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast});
  InitNow(0, 1, "aaaa");
  BareNow(FrameType::kFetch, 2, 1);
  BareNow(FrameType::kProbe, 2, 1);  // it has it; rank 1 has not
  InitNow(0, 2, "bbbb");
  BareNow(FrameType::kFetch, 2, 2);
  EXPECT_EQ(Reply(2).header.type, FrameType::kWaiting);
  EXPECT_THAT(RanksOf(Reply(2)), ElementsAre(1)) << "the value waits for it";
  GoOnWith({0, 2});
  EXPECT_EQ(Value(2), "bbbb") << "by the new roster alone: nobody asked again";
  EXPECT_EQ(Reply(0).header.type, FrameType::kReply);
}

TEST_F(RosterGapTest, WhatABroadcastsWorkersHaveStaysTheirs) {
  Start(4, {.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast});
  InitNow(0, 1, "aaaa");
  for (const Rank rank : {1, 2}) BareNow(FrameType::kFetch, rank, 1);
  BareNow(FrameType::kProbe, 2, 1);
  BareNow(FrameType::kProbe, 1, 1);
  GoOnWith({0, 2, 3});  // rank 3, which is behind, comes to the place that rank 2 had
  InitNow(0, 2, "bbbb");
  BareNow(FrameType::kProbe, 0, 2);
  EXPECT_THAT(RanksOf(Reply(0)), ElementsAre(3));
  BareNow(FrameType::kFetch, 3, 1);
  EXPECT_EQ(Value(3), "aaaa");
  BareNow(FrameType::kProbe, 3, 1);
  EXPECT_EQ(Reply(0).header.type, FrameType::kReply) << "in force";
}

TEST_F(RosterGapTest, TheValueOfALostRootStaysAndOneThatItNeverSetIsMissed) {
  Start(3, {.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast});
  InitNow(1, 1, "aaaa");
  GoOnWith({0, 2});
  BareNow(FrameType::kFetch, 0, 1);
  EXPECT_EQ(Value(0), "aaaa");
  BareNow(FrameType::kFetch, 2, 2);
  EXPECT_EQ(Reply(2).header.type, FrameType::kWaiting);
  EXPECT_THAT(RanksOf(Reply(2)), IsEmpty()) << "which says that its root has not set it";
  BareNow(FrameType::kFetch, 2, 1);  // it goes back to nothing: the step is not over for it
  InitNow(0, 3, "cccc");
  BareNow(FrameType::kFetch, 2, 3);
  EXPECT_EQ(Value(2), "cccc");
}

TEST_F(RosterGapTest, RanksOfMoreThanOneLossAreTold) {
  Start(5);
  GoOnWith({0, 2, 3, 4});
  GoOnWith({2, 4});
  PushNow(4, 1, {6, 6, 6, 6});
  BareNow(FrameType::kProbe, 4, 1);
  EXPECT_THAT(RanksOf(Reply(4)), ElementsAre(2));
  PushNow(2, 1, {4, 4, 4, 4});
  EXPECT_THAT(Result(4), ElementsAre(5, 5, 5, 5));
  EXPECT_THAT(outbox_.sent, Not(IsEmpty()));
}

}  // namespace
}  // namespace bdn::testing
