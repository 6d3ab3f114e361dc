#include <limits>
#include <random>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"

// Rounds of a dense key, from the first push to the kept reply.

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using DenseRoundTest = ShardFixture;

TEST_F(DenseRoundTest, AnswersEveryWorkerWithTheMeanOnceAllHavePushed) {
  Start(2);
  Push(1, 1, {1, 2, 3, 4});
  EXPECT_THAT(outbox_.sent, IsEmpty());
  Push(0, 1, {3, 2, 1, 0});
  EXPECT_THAT(outbox_.sent, SizeIs(2));
  EXPECT_THAT(Result(0), ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(outbox_.LastTo(0)->payload.data(), outbox_.LastTo(1)->payload.data());
  EXPECT_EQ(outbox_.LastTo(0)->header.weight, 0.0f) << "reserved";
}

TEST_F(DenseRoundTest, CountsWhatPayloadsStandForEachWay) {
  Start(3, {.push = "fp16", .pull = "onebit", .segments = {64}});
  Push(0, 1, Floats(64, 1.0f));
  PushFlagged(1, 1, kFlagAbsent);
  Push(2, 1, Floats(64, 1.0f));
  EXPECT_EQ(shard_.stats().bytes_pushed, 2 * 64 * 2u);
  EXPECT_EQ(shard_.stats().bytes_pushed_plain, 2 * 64 * 4u) << "an absent worker sent none";
  EXPECT_EQ(shard_.stats().bytes_replied, 3 * outbox_.LastTo(0)->payload.size());
  EXPECT_EQ(shard_.stats().bytes_replied_plain, 3 * 64 * 4u);
}

class SteppedStageClock final : public StageClock {
 public:
  int64_t WallNs() const override { return now; }
  int64_t ThreadCpuNs() const override { return 0; }
  int64_t now = 0;
};

class RankWaitsTest : public ShardFixture {
 protected:
  ShardOptions OptionsOfShard() override {
    return {.self = kServerNode, .stages = &stages_, .waits = &waits_};
  }
  void PushAt(int64_t ns, Rank rank, Step step) {
    clock_.now = ns;
    Push(rank, step, {1, 1, 1, 1});
  }
  SteppedStageClock clock_;
  StageTimes stages_{&clock_};
  RankWaits waits_{3};
};

TEST_F(RankWaitsTest, TellsFromTheFirstPushToEachRanksOfRoundsThatAreComplete) {
  Start(3);
  PushAt(100, 1, 1);
  PushAt(150, 0, 1);
  PushAt(900, 2, 1);
  EXPECT_EQ(waits_.ns_of(1), 0u);
  EXPECT_EQ(waits_.ns_of(0), 50u);
  EXPECT_EQ(waits_.ns_of(2), 800u);
  PushAt(1000, 0, 2);
  PushAt(1007, 2, 2);
  EXPECT_EQ(waits_.ns_of(2), 800u) << "its round is open";
  PushAt(1010, 1, 2);
  EXPECT_EQ(waits_.ns_of(2), 807u);
  EXPECT_EQ(waits_.ns_of(1), 10u);
  EXPECT_EQ(waits_.ns_of(0), 50u);
}

TEST_F(RankWaitsTest, ARankThatIsNoneCountsNothing) {
  waits_.Add(-1, 5);
  waits_.Add(3, 5);
  for (size_t rank = 0; rank < waits_.size(); ++rank) EXPECT_EQ(waits_.ns_of(rank), 0u);
}

TEST_F(DenseRoundTest, SumsInRankOrderWhateverTheOrderOfArrival) {
  const Floats values[3] = {{1e8f, 1, 1, 1}, {-1e8f, 2, 2, 2}, {0.5f, 3, 3, 3}};
  std::vector<std::vector<Rank>> orders = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
  std::vector<Floats> results;
  for (const auto& order : orders) {
    Start(3);
    for (const Rank rank : order) Push(rank, 1, values[rank]);
    results.push_back(Result(0));
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[0][0], 0.5f * (1.0f / 3));
}

// randomk and blocks both ways: the server adds payloads without decoding them, and whoever pulls
// gets what decoding, averaging and encoding would have given.
TEST_F(DenseRoundTest, AddsUndecodedPayloadsToTheSameBits) {
  for (const char* spec : {"randomk(ratio=0.3)", "blocks(ratio=0.5,size=8)"}) {
    const KeyOptions same{.push = spec, .pull = spec, .segments = {100, 33}};
    const KeyOptions decoded{.push = spec, .pull = "none", .segments = {100, 33}};
    std::vector<Floats> results;
    for (const KeyOptions& options : {same, decoded}) {
      Start(3, options);
      for (const Rank rank : {2, 0, 1}) {
        Floats values(133);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = static_cast<float>(i % 7) - static_cast<float>(rank) * 0.3f;
        }
        Push(rank, 1, values);
      }
      results.push_back(Result(0));
    }
    EXPECT_EQ(results[0], results[1]) << spec;
    EXPECT_NE(results[0], Floats(133, 0.0f)) << spec;
  }
}

TEST_F(DenseRoundTest, CountsARepeatedPushOnceAndSaysWhomItWaitsFor) {
  Start(3);
  Push(0, 1, {3, 3, 3, 3});
  Push(0, 1, {3, 3, 3, 3});
  EXPECT_THAT(RanksOf(*outbox_.LastTo(0)), ElementsAre(1, 2));
  Push(1, 1, {0, 0, 0, 0});
  Push(2, 1, {0, 0, 0, 0});
  EXPECT_THAT(Result(2), ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(shard_.stats().duplicates, 1u);
}

TEST_F(DenseRoundTest, GivesASlowWorkerItsOwnStepsResultWhenAFastOneIsAhead) {
  Start(2);
  Push(0, 1, {1, 1, 1, 1});
  Push(1, 1, {3, 3, 3, 3});
  outbox_.sent.clear();  // worker 1 never gets it
  Push(0, 2, {100, 100, 100, 100});
  Push(1, 1, {3, 3, 3, 3});  // and asks again by pushing
  EXPECT_EQ(outbox_.LastTo(1)->header.step, 1u);
  EXPECT_THAT(Result(1), ElementsAre(2, 2, 2, 2));
}

TEST_F(DenseRoundTest, NamesTheFirstMissingRanksAndTheAskersAlone) {
  Start(1000);
  Push(1, 1, {1, 1, 1, 1});
  Probe(1, 1);
  const std::vector<Rank> missing = RanksOf(Reply(1));
  ASSERT_EQ(missing.size(), kMostRanksTold - 1);
  EXPECT_EQ(missing[0], 0);
  EXPECT_EQ(missing[1], 2);
  EXPECT_EQ(missing.back(), static_cast<Rank>(kMostRanksTold) - 1);
  Probe(999, 1);  // sends the same bytes again
  EXPECT_EQ(RanksOf(Reply(999)).back(), 999);
  EXPECT_EQ(RanksOf(Reply(999)).size(), kMostRanksTold);
}

TEST_F(DenseRoundTest, AnswersAProbeWithTheMissingRanksOrTheCachedReply) {
  Start(2);
  Probe(0, 1);
  EXPECT_THAT(RanksOf(*outbox_.LastTo(0)), ElementsAre(0, 1));
  Push(0, 1, {2, 2, 2, 2});
  Probe(0, 1);
  EXPECT_THAT(RanksOf(*outbox_.LastTo(0)), ElementsAre(1));
  Push(1, 1, {4, 4, 4, 4});
  outbox_.sent.clear();
  Probe(1, 1);
  EXPECT_THAT(Result(1), ElementsAre(3, 3, 3, 3));
}

TEST_F(DenseRoundTest, FailsTheRoundForAllWhenWorkersAreAtDifferentSteps) {
  Start(2);
  Push(0, 4, {1, 1, 1, 1});
  Push(1, 5, {1, 1, 1, 1});
  for (const Rank rank : {0, 1}) {
    EXPECT_EQ(Error(rank).code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(Error(rank).message()),
                HasSubstr("rank 0 is at step 4 and rank 1 at step 5"));
  }
  Probe(0, 4);  // whoever missed it hears it under its own step
  EXPECT_EQ(outbox_.LastTo(0)->header.step, 4u);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
  Push(0, 6, {1, 1, 1, 1});
  Push(1, 6, {1, 1, 1, 1});
  EXPECT_THAT(Result(1), ElementsAre(1, 1, 1, 1));
}

TEST_F(DenseRoundTest, FailsTheRoundForAllOnAForeignCodec) {
  Start(2);
  Push(0, 1, {1, 1, 1, 1});
  KeyOptions other = options_;
  other.push = "bf16";
  Send(MakePush(kKey, 1, 1, {1, 1, 1, 1}, other));
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("rank 1 pushed codec"));
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kInvalidArgument);
}

// Workers send again upon some codes: a round that failed must not be answered by one of them.
TEST_F(DenseRoundTest, FailsTheRoundForAllOnAPayloadThatWasDrawnOtherwise) {
  for (const char* spec : {"randomk(ratio=0.5)", "sketch(columns=0.5)"}) {
    for (const Rank wrong : {0, 1}) {
      Start(2, {.push = spec, .pull = spec, .segments = {32, 40}});
      const Floats values(72, 1.0f);
      Frame push = MakePush(kKey, 1, wrong, values, options_);
      Buffer payload = Buffer::CopyOf(push.payload.span());
      payload.data()[2 * sizeof(uint32_t)] ^= std::byte{1};  // the first segment's, after the table
      if (wrong == 1) Push(0, 1, values);
      Send(MakeFrame(push.header, payload));
      for (const Rank rank : {0, 1}) {
        EXPECT_EQ(Error(rank).code(), absl::StatusCode::kInvalidArgument) << spec;
        EXPECT_THAT(std::string(Error(rank).message()),
                    HasSubstr("from rank " + std::to_string(wrong)));
      }
      EXPECT_EQ(State().last_step, 1u);
    }
  }
}

TEST_F(DenseRoundTest, AResultIsKeptForWhoMissedItWhenTheNextStepFails) {
  Start(2);
  Push(0, 1, {1, 1, 1, 1});
  Push(1, 1, {3, 3, 3, 3});
  KeyOptions other = options_;
  other.push = "bf16";
  Send(MakePush(kKey, 2, 1, {1, 1, 1, 1}, other));  // rank 0 has not heard of step 1
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kInvalidArgument);
  Probe(0, 1);
  EXPECT_THAT(Result(0), ElementsAre(2, 2, 2, 2));
  Push(0, 2, {1, 1, 1, 1});
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DenseRoundTest, FailsTheRoundForAllWhenLearningRatesDiffer) {
  Start(2);
  Frame a = MakePush(kKey, 1, 0, {1, 1, 1, 1});
  Frame b = MakePush(kKey, 1, 1, {1, 1, 1, 1});
  a.header.learning_rate = 0.1f;
  b.header.learning_rate = 0.2f;
  Send(a);
  Send(b);
  EXPECT_THAT(std::string(Error(0).message()),
              HasSubstr("rank 0 has learning rate 0.1 and rank 1 has 0.2"));
}

class ProgramStepsTest : public ShardFixture {
 protected:
  void PushCounted(Rank rank, Step step, uint32_t program_steps) {
    program_steps_ = program_steps;
    Push(rank, step, {1, 1, 1, 1});
  }
};

TEST_F(ProgramStepsTest, TheFirstPushOfAnotherStepOfTheProgramFailsTheRoundForAll) {
  constexpr uint32_t kFive = 6, kSix = 7;  // 1 + what had ended
  for (const std::vector<Rank>& order : {std::vector<Rank>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    Start(3);
    PushCounted(order[0], 1, kSix);
    PushCounted(order[1], 1, kFive);
    const std::string counts = absl::StrFormat(
        "tensor 'tensor' step 1: rank %d pushed it after 6 steps of its program and rank %d after "
        "5",
        order[0], order[1]);
    for (const Rank rank : {0, 1, 2}) {
      EXPECT_EQ(Error(rank).code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(Error(rank).message()), HasSubstr(counts));
      EXPECT_THAT(std::string(Error(rank).message()), HasSubstr("backward()"));
    }
    outbox_.sent.clear();
    PushCounted(order[2], 1, kSix);  // who comes late hears the same
    EXPECT_THAT(std::string(Error(order[2]).message()), HasSubstr(counts));
    EXPECT_EQ(State().last_step, 1u);
    for (const Rank rank : {0, 1, 2}) PushCounted(rank, 2, kSix);
    EXPECT_THAT(Result(0), ElementsAre(1, 1, 1, 1)) << "the next is a round like others";
  }
}

TEST_F(ProgramStepsTest, WhatIsNotKnownIsComparedWithNothing) {
  Start(4);
  PushCounted(2, 1, 0);
  PushCounted(3, 1, 5);
  PushCounted(0, 1, 0);
  EXPECT_THAT(outbox_.sent, IsEmpty());
  PushCounted(1, 1, 9);
  EXPECT_THAT(std::string(Error(2).message()), HasSubstr("rank 3 pushed it after 4"));
  EXPECT_THAT(std::string(Error(2).message()), HasSubstr("rank 1 after 8"));
  for (const Rank rank : {0, 1, 2, 3}) PushCounted(rank, 2, rank % 2 == 0 ? 0 : 5);
  EXPECT_THAT(Result(0), ElementsAre(1, 1, 1, 1));
}

TEST_F(ProgramStepsTest, AbsentAndNonFinitePushesAreComparedToo) {
  for (const uint8_t flag : {kFlagAbsent, kFlagNonFinite}) {
    Start(2);
    PushCounted(0, 1, 3);
    program_steps_ = 2;
    PushFlagged(1, 1, flag);
    EXPECT_THAT(std::string(Error(0).message()), HasSubstr("rank 0 pushed it after 2"));
    EXPECT_THAT(std::string(Error(0).message()), HasSubstr("rank 1 after 1"));
  }
}

TEST_F(ProgramStepsTest, ARepeatIsHarmlessAndTheCountsAreSaidBeforeRatesThatASchedulerChanged) {
  Start(2);
  PushCounted(0, 1, 3);
  PushCounted(0, 1, 3);
  EXPECT_THAT(RanksOf(Reply(0)), ElementsAre(1));
  rate_ = 0.25f;
  PushCounted(1, 1, 4);
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("steps of its program"));
}

TEST_F(DenseRoundTest, WeighsContributions) {
  Start(2);
  Frame half = MakePush(kKey, 1, 0, {1, 1, 1, 1});
  half.header.weight = 1;
  Frame heavy = MakePush(kKey, 1, 1, {9, 9, 9, 9});  // 3 * 3
  heavy.header.weight = 3;
  Send(half);
  Send(heavy);
  EXPECT_THAT(Result(0), ElementsAre(2.5f, 2.5f, 2.5f, 2.5f));
}

TEST_F(DenseRoundTest, CountsAnAbsentWorkerInTheDenominator) {
  Start(2);
  Push(0, 1, {4, 4, 4, 4});
  PushFlagged(1, 1, kFlagAbsent);
  EXPECT_THAT(Result(1), ElementsAre(2, 2, 2, 2));
}

TEST_F(DenseRoundTest, RepliesAbsentWhenNobodyHasAGradientAndLeavesTheMemoryAlone) {
  Start(2, {.push = "none", .pull = "ef(onebit)"});
  Push(0, 1, {1, 2, 3, 4});
  Push(1, 1, {1, 2, 3, 4});
  const Floats before = Parts().residual;
  PushFlagged(0, 2, kFlagAbsent);
  PushFlagged(1, 2, kFlagAbsent);
  EXPECT_EQ(outbox_.LastTo(0)->header.flags, kFlagAbsent);
  EXPECT_EQ(Parts().residual, before);
}

constexpr uint8_t kDoesWithout = kFlagAbsent | kFlagUnwanted;

TEST_F(DenseRoundTest, SparesWorkersThePayloadsThatTheyDoWithout) {
  for (const std::vector<Rank>& order : {std::vector<Rank>{0, 1, 2}, {2, 0, 1}, {1, 2, 0}}) {
    Start(3);
    for (const Rank rank : order) {
      if (rank == 1) {
        PushFlagged(1, 1, kDoesWithout);
      } else {
        Push(rank, 1, {3, 6, 9, 12});
      }
    }
    EXPECT_THAT(outbox_.sent, SizeIs(3));
    for (const Rank rank : {0, 2}) {
      EXPECT_EQ(Reply(rank).header.flags, 0);
      EXPECT_THAT(Result(rank), ElementsAre(2, 4, 6, 8));  // absent counts in the denominator
    }
    FrameHeader expected = Reply(0).header;
    expected.codec = 0;
    expected.flags = kFlagUnwanted;
    expected.payload_bytes = 0;
    expected.payload_crc = 0;
    EXPECT_EQ(Reply(1).header, expected);
    EXPECT_TRUE(Reply(1).payload.empty());
  }
}

TEST_F(DenseRoundTest, AKeptReplyIsToldAsEachAskerWantsIt) {
  Start(2);
  Push(0, 1, {2, 2, 2, 2});
  PushFlagged(1, 1, kDoesWithout);
  for (int i = 0; i < 2; ++i) {
    outbox_.sent.clear();
    Probe(1, 1, kFlagUnwanted);
    EXPECT_EQ(Reply(1).header.flags, kFlagUnwanted);
    EXPECT_TRUE(Reply(1).payload.empty());
    Probe(0, 1);
    EXPECT_THAT(Result(0), ElementsAre(1, 1, 1, 1));
    outbox_.sent.clear();
    PushFlagged(1, 1, kDoesWithout);  // the same bytes again
    EXPECT_EQ(Reply(1).header.flags, kFlagUnwanted);
    Push(0, 1, {2, 2, 2, 2});
    EXPECT_THAT(Result(0), ElementsAre(1, 1, 1, 1));
  }
  EXPECT_EQ(shard_.stats().cached_replies, 8u);
  EXPECT_EQ(shard_.stats().pushes, 2u);
}

TEST_F(DenseRoundTest, ARepeatThatIsUnwantedIsCountedOnce) {
  Start(2);
  PushFlagged(1, 1, kDoesWithout);
  PushFlagged(1, 1, kDoesWithout);
  EXPECT_THAT(RanksOf(Reply(1)), ElementsAre(0));
  Probe(1, 1, kFlagUnwanted);
  EXPECT_THAT(RanksOf(Reply(1)), ElementsAre(0));
  outbox_.sent.clear();
  Push(0, 1, {2, 2, 2, 2});
  EXPECT_THAT(outbox_.sent, SizeIs(2));
  EXPECT_EQ(Reply(1).header.flags, kFlagUnwanted);
  Push(1, 2, {1, 1, 1, 1});  // wishes are of one step
  Push(0, 2, {3, 3, 3, 3});
  EXPECT_THAT(Result(1), ElementsAre(2, 2, 2, 2));
}

TEST_F(DenseRoundTest, WhatHasNoPayloadAnywayIsToldToAllAlike) {
  Start(2);
  PushFlagged(0, 1, kFlagAbsent);
  PushFlagged(1, 1, kDoesWithout);
  EXPECT_EQ(Reply(1).header.flags, kFlagAbsent);
  PushFlagged(0, 2, kFlagNonFinite);
  PushFlagged(1, 2, kDoesWithout);
  EXPECT_EQ(Reply(1).header.flags, kFlagNonFinite);
  PushFlagged(1, 3, kDoesWithout);
  Push(0, 4, {1, 1, 1, 1});
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kAborted);
  Probe(1, 3, kFlagUnwanted);
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kAborted);
}

TEST_F(DenseRoundTest, ANewEpochForgetsWhatWasUnwanted) {
  Start(2);
  PushFlagged(1, 1, kDoesWithout);
  shard_.SetMembership(MakeMembership(2, 2));
  outbox_.sent.clear();
  for (const Rank rank : {0, 1}) {
    Frame push = MakePush(kKey, 1, rank, {1, 1, 1, 1}, options_);
    push.header.epoch = 2;
    Send(push);
  }
  EXPECT_THAT(Result(1), ElementsAre(1, 1, 1, 1));
}

TEST_F(DenseRoundTest, ClosesNonFiniteForAllAndLeavesTheMemoryAlone) {
  Start(2, {.push = "none", .pull = "ef(onebit)"});
  Push(0, 1, {1, 2, 3, 4});
  Push(1, 1, {1, 2, 3, 4});
  const Floats before = Parts().residual;
  Push(0, 2, {1, 1, 1, 1});
  PushFlagged(1, 2, kFlagNonFinite);
  EXPECT_EQ(outbox_.LastTo(0)->header.flags, kFlagNonFinite);
  EXPECT_EQ(Parts().residual, before);
}

TEST_F(DenseRoundTest, ClosesNonFiniteWhenTheSumOverflows) {
  Start(2);
  const float huge = std::numeric_limits<float>::max();
  Push(0, 1, {huge, 0, 0, 0});
  Push(1, 1, {huge, 0, 0, 0});
  EXPECT_EQ(outbox_.LastTo(1)->header.flags, kFlagNonFinite);
}

TEST_F(DenseRoundTest, KeepsWhatTheReplyOmits) {
  Start(2, {.push = "none", .pull = "ef(onebit)"});
  Floats sent(4, 0.0f);
  Floats given(4, 0.0f);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (Step step = 1; step <= 20; ++step) {
    Floats a(4), b(4);
    for (int i = 0; i < 4; ++i) {
      a[i] = normal(random);
      b[i] = normal(random);
      given[i] += (a[i] + b[i]) / 2;
    }
    Push(0, step, a);
    Push(1, step, b);
    const Floats result = Result(0);
    for (int i = 0; i < 4; ++i) sent[i] += result[i];
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(sent[i] + Parts().residual[i], given[i], 1e-4);
  }
}

TEST_F(DenseRoundTest, OwesNothingAfterALosslessStageOfThePull) {
  Start(1, {.push = "none", .pull = "ef(onebit) for 2; ef(none)"});
  Floats given(4, 0.0f);
  Floats sent(4, 0.0f);
  for (Step step = 1; step <= 3; ++step) {
    const Floats values = {1, -2, static_cast<float>(step), 4};
    Push(0, step, values);
    const Floats result = ValuesOf(*outbox_.LastTo(0), {.pull = step <= 2 ? "onebit" : "none"});
    for (int i = 0; i < 4; ++i) {
      given[i] += values[i];
      sent[i] += result[i];
    }
    EXPECT_EQ(sent == given, step == 3) << step;
  }
  EXPECT_EQ(Parts().residual, Floats(4, 0.0f));
}

TEST(KeyPlan, RefusesPartitionsWhosePayloadsAreTooLargeForAFrame) {
  const KeyEntry entry = MakeEntry(kKey, {.dtype = DType::kFloat64, .segments = {(1u << 27) + 1}});
  const absl::Status refused = MakeKeyPlan(entry, "large").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tensor 'large'"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--partition-bytes"));
}

TEST_F(DenseRoundTest, KeepsTheResidualOfASegmentThatNobodyHad) {
  Start(1, {.push = "none", .pull = "ef(onebit)", .segments = {3, 2}});
  Push(0, 1, {1, 2, 3, 5, 9});
  const Floats before = Parts().residual;
  const SegmentedCodec& codec = *Plan().codecs.push;
  const Floats values = {7, 8, 9};
  std::vector<SegmentedCodec::Input> inputs = {{{values.data(), DType::kFloat32, 3}},
                                               {{nullptr, DType::kFloat32, 2}, 1.0f, false}};
  Buffer payload = Buffer::Allocate(codec.MaxEncodedBytes());
  const size_t used = codec.Encode(inputs, Draw(), payload.mutable_span()).value();
  Frame push = MakeBare(FrameType::kPush, kKey, 2, 0, 5);
  push.header.codec = static_cast<uint8_t>(CodecId::kNone);
  Send(MakeFrame(push.header, payload.Prefix(used)));

  const Floats after = Parts().residual;
  EXPECT_NE(Floats(after.begin(), after.begin() + 3), Floats(before.begin(), before.begin() + 3));
  EXPECT_EQ(Floats(after.begin() + 3, after.end()), Floats(before.begin() + 3, before.end()));
  EXPECT_FALSE(Plan().codecs.pull->Present(outbox_.LastTo(0)->payload.span(), 1));
}

TEST_F(DenseRoundTest, SumsFloat64InFloat64) {
  options_ = {.dtype = DType::kFloat64, .segments = {1}};
  Start(2, options_);
  for (const Rank rank : {0, 1}) {
    const double value = rank == 0 ? 1.0 : 1e-12;
    Buffer payload = Buffer::CopyOf(std::as_bytes(std::span(&value, 1)));
    Frame push = MakeBare(FrameType::kPush, kKey, 1, rank, 1);
    push.header.codec = static_cast<uint8_t>(CodecId::kNone);
    Send(MakeFrame(push.header, payload));
  }
  ASSERT_NE(outbox_.LastTo(0), nullptr);
  EXPECT_EQ(LoadLittle<double>(outbox_.LastTo(0)->payload.span()), (1.0 + 1e-12) * 0.5);
}

TEST_F(DenseRoundTest, GoesUncompressedDuringTheWarmUp) {
  Start(1, {.push = "onebit", .pull = "onebit", .warmup = 1});
  Push(0, 1, {1, 2, 3, 4});
  EXPECT_THAT(Result(0), ElementsAre(1, 2, 3, 4));
  Push(0, 2, {1, -2, 3, 4});
  EXPECT_THAT(Result(0), ElementsAre(2.5f, -2.5f, 2.5f, 2.5f));
}

}  // namespace
}  // namespace bdn::testing
