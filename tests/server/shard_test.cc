#include "server/shard.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"

// The behaviour of a shard whatever the key's state: the senders that it takes, epochs, workers
// that leave.

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ShardTest = ShardFixture;

TEST_F(ShardTest, NoRoundWaitsForAWorkerThatIsLeaving) {
  Start(3);
  for (const Rank rank : {0, 1, 2}) Push(rank, 1, {3, 3, 3, 3});
  Push(0, 2, {1, 1, 1, 1});
  outbox_.Add(shard_.SetLeaving({2}));
  EXPECT_EQ(outbox_.LastTo(0)->header.step, 2u);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(Error(0).message()),
              HasSubstr("tensor 'tensor' step 2: worker 2 is leaving"));
  EXPECT_EQ(shard_.stats().rounds_failed, 1u);
  Push(0, 2, {1, 1, 1, 1});  // The answer was lost: asked again, it is the same.
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
  Probe(1, 1);  // Nor did whoever is behind lose its own step's result.
  EXPECT_THAT(Result(1), ElementsAre(3, 3, 3, 3));
}

TEST_F(ShardTest, ALeavingWorkerMaySendItsPushAgain) {
  Start(2);
  Push(1, 1, {4, 4, 4, 4});
  outbox_.Add(shard_.SetLeaving({1}));
  shard_.SetMembership(MakeMembership(2, 2));  // Rounds start over.
  for (const Rank rank : {0, 1}) {
    Frame push = MakePush(kKey, 1, rank, {4, 4, 4, 4});
    push.header.epoch = 2;
    Send(push);
  }
  EXPECT_THAT(Result(0), ElementsAre(4, 4, 4, 4));
}

TEST_F(ShardTest, ARoundThatHasThePushOfAWorkerWhichLeavesGoesOn) {
  Start(2);
  Push(1, 1, {4, 4, 4, 4});
  outbox_.Add(shard_.SetLeaving({1}));
  Push(0, 1, {2, 2, 2, 2});
  EXPECT_THAT(Result(0), ElementsAre(3, 3, 3, 3));
}

TEST_F(ShardTest, NoValueOfABroadcastIsAskedForAndUnwanted) {
  Start(2, {.kind = KeyKind::kBroadcast});
  Probe(1, 1, kFlagUnwanted);
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Error(1).message()), HasSubstr("flags of broadcast tensor"));
}

TEST_F(ShardTest, RefusesWhatOnlyConcernsTheSenderAndGoesOn) {
  Start(2);
  Push(0, 1, {1, 1, 1, 1});

  Frame damaged = MakePush(kKey, 1, 1, {1, 1, 1, 1});
  damaged.header.payload_crc ^= 1;
  Send(damaged);
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kDataLoss);

  Frame cut = MakePush(kKey, 1, 1, {1, 1, 1, 1});
  Send(MakeFrame(cut.header, cut.payload.Prefix(15)));
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kInvalidArgument);

  Frame miscounted = MakePush(kKey, 1, 1, {1, 1, 1, 1});
  miscounted.header.num_elements = 5;
  Send(miscounted);
  EXPECT_THAT(std::string(Error(1).message()), HasSubstr("has 4 elements, not 5"));

  Frame stranger = MakePush(kKey, 1, 5, {1, 1, 1, 1});
  Send(stranger);
  EXPECT_EQ(ErrorOf(*outbox_.LastTo(5)).code(), absl::StatusCode::kPermissionDenied);

  Frame forged = MakePush(kKey, 1, 1, {9, 9, 9, 9});
  outbox_.Add(shard_.OnFrame(WorkerNode(0), forged));

  Push(0, 2, {1, 1, 1, 1});
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("pushed step 2 while its step 1 is open"));

  Frame unknown = MakePush(Key::Of(8, 0), 1, 1, {1, 1, 1, 1});
  Send(unknown);
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kNotFound);
  unknown.header.catalogue_version = 2;
  Send(unknown);
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kUnavailable);

  Push(1, 1, {3, 3, 3, 3});
  EXPECT_THAT(Result(0), ElementsAre(2, 2, 2, 2));
}

TEST_F(ShardTest, AnAbsurdStepDoesNotCloseAnOpenRound) {
  Start(2);
  Push(0, 1, {1, 1, 1, 1});
  Push(1, Step{1} << 60, {1, 1, 1, 1});
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kInvalidArgument);
  Push(1, 1, {3, 3, 3, 3});
  EXPECT_THAT(Result(0), ElementsAre(2, 2, 2, 2));
}

TEST_F(ShardTest, RefusesAStepThatIsZeroTooFarAheadOrLongOver) {
  Start(1);
  Push(0, 0, {1, 1, 1, 1});
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("count from 1"));
  Probe(0, 0);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("count from 1"));
  Push(0, Step{1} << 40, {1, 1, 1, 1});
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("too far ahead"));
  Push(0, 1, {1, 1, 1, 1});
  Push(0, 2, {1, 1, 1, 1});
  Push(0, 1, {1, 1, 1, 1});
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(ShardTest, StartsTheRoundOverInANewEpochAndAnswersClosedStepsInAnyEpoch) {
  Start(2);
  Push(0, 1, {1, 1, 1, 1});
  Push(1, 1, {3, 3, 3, 3});
  Push(0, 2, {5, 5, 5, 5});
  shard_.SetMembership(MakeMembership(2, /*epoch=*/2));
  Push(1, 2, {1, 1, 1, 1});  // still stamped with epoch 1
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kFailedPrecondition);
  Probe(1, 1);
  EXPECT_THAT(Result(1), ElementsAre(2, 2, 2, 2));
  for (const Rank rank : {0, 1}) {
    Frame push = MakePush(kKey, 2, rank, {4, 4, 4, 4});
    push.header.epoch = 2;
    Send(push);
  }
  EXPECT_THAT(Result(0), ElementsAre(4, 4, 4, 4));
  Frame early = MakePush(kKey, 3, 0, {4, 4, 4, 4});
  early.header.epoch = 3;
  Send(early);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ShardTest, BroadcastKeysHaveNoParts) {
  Start(1, {.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast});
  for (const FrameType type : {FrameType::kInit, FrameType::kFetch}) {
    Frame frame = MakeBare(type, kKey, 1, 0, 4);
    frame.header.part = StatePart::kWeights;
    Send(frame);
    EXPECT_THAT(std::string(Error(0).message()), HasSubstr("of broadcast tensor 'tensor' are 0"));
  }
}

TEST_F(ShardTest, ForgetsAKeyThatAllWorkersAreDoneWith) {
  Start(2, {.pull = "ef(onebit)"});
  for (const Rank rank : {0, 1}) Push(rank, 1, {1, 2, 3, 4});
  EXPECT_GT(shard_.held().residuals, 0u);
  EXPECT_GT(shard_.held().replies, 0u);
  EXPECT_TRUE(shard_.RemoveKey(kKey).empty());
  EXPECT_EQ(shard_.held(), HeldBytes());
  EXPECT_EQ(shard_.Find(kKey), nullptr);
  EXPECT_TRUE(shard_.RemoveKey(kKey).empty()) << "it is not here";
  // A late request has an answer that ends it.
  for (const FrameType type : {FrameType::kPush, FrameType::kProbe, FrameType::kFetch}) {
    Send(MakeBare(type, kKey, 1, 1, 4));
    EXPECT_EQ(Error(1).code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(std::string(Error(1).message()), HasSubstr("all workers are done with"));
  }
  // A name's next owner begins anew, under another number.
  const Key next = Key::Of(8, 0);
  shard_.AddKey(MakePlan(next));
  for (const Rank rank : {0, 1}) {
    Send(MakePush(next, 1, rank, {1, 1, 1, 1}));
  }
  EXPECT_EQ(Reply(0).header.step, 1u);
}

TEST_F(ShardTest, WhoHasPushedToAnOpenRoundIsToldThatItsKeyIsNoMore) {
  Start(3);
  Push(1, 1, {4, 4, 4, 4});
  outbox_.Add(shard_.RemoveKey(kKey));
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(Error(1).message()),
              HasSubstr("tensor 'tensor' step 1: what exchanged it was closed"));
  EXPECT_EQ(shard_.held().total(), 0u);
  EXPECT_EQ(shard_.stats().rounds_failed, 1u);
}

}  // namespace
}  // namespace bdn::testing
