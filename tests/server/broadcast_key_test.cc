#include "server/broadcast_key.h"

#include <algorithm>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/key_rebuild.h"
#include "server/key_state.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Key kKey = Key::Of(7, 0);

// A key of four bytes and three workers.
class BroadcastKeyTest : public ::testing::Test {
 protected:
  BroadcastKeyTest() {
    shard_.options.self = kServerNode;
    shard_.SetMembership(MakeMembership(3));
    state_.SetRoster(MakePlaces(3));
  }
  BroadcastKey Target() { return BroadcastKey(*plan_, &state_, &shard_); }
  void Init(Rank rank, Step step, const std::string& bytes) {
    Frame bare = MakeBare(FrameType::kInit, kKey, step, rank, 4);
    bare.header.epoch = epoch_;
    const Buffer payload = Buffer::CopyOf(std::as_bytes(std::span(bytes)));
    outbox_.Add(Target().OnInit(WorkerNode(rank), MakeFrame(bare.header, payload)));
  }
  void Fetch(Rank rank, Step step) { FetchWith(rank, step, Buffer()); }
  void FetchHolding(Rank rank, Step step, const std::string& held) {
    FetchWith(rank, step, Buffer::CopyOf(DigestOf(std::as_bytes(std::span(held)))));
  }
  void FetchWith(Rank rank, Step step, const Buffer& payload, uint8_t flags = 0) {
    Frame fetch = MakeBare(FrameType::kFetch, kKey, step, rank, 4);
    fetch.header.flags = flags;
    outbox_.Add(Target().OnFetch(WorkerNode(rank), MakeFrame(fetch.header, payload)));
  }
  // Whether a worker was told last that it has the value.
  bool WasToldSame(Rank rank) {
    const Frame* last = outbox_.LastTo(rank);
    return last != nullptr && last->header.type == FrameType::kValue &&
           last->header.flags == kFlagSame && last->payload.empty();
  }
  void Probe(Rank rank, Step step) {
    const Frame probe = MakeBare(FrameType::kProbe, kKey, step, rank, 4);
    outbox_.Add(Target().OnProbe(WorkerNode(rank), probe.header));
  }
  std::string Value(Rank rank) {
    const Frame* last = outbox_.LastTo(rank);
    if (last == nullptr || last->header.type != FrameType::kValue) return "";
    return std::string(reinterpret_cast<const char*>(last->payload.data()), last->payload.size());
  }
  absl::Status Error(Rank rank) {
    const Frame* last = outbox_.LastTo(rank);
    return last == nullptr ? absl::OkStatus() : ErrorOf(*last);
  }

  const std::shared_ptr<const KeyPlan> plan_ =
      MakePlan(kKey, {.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast});
  Epoch epoch_ = 1;
  BroadcastState state_;
  ShardContext shard_;
  Outbox outbox_;
};

TEST_F(BroadcastKeyTest, HandsTheRootsValueToThoseWhoAskBeforeAndAfter) {
  Fetch(1, 1);
  EXPECT_EQ(outbox_.LastTo(1)->header.type, FrameType::kWaiting);
  Init(0, 1, "abcd");
  EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
  EXPECT_EQ(Value(1), "abcd");
  Fetch(2, 1);
  EXPECT_EQ(Value(2), "abcd");
}

TEST_F(BroadcastKeyTest, SparesTheValueToWhoHasIt) {
  FetchHolding(1, 1, "abcd");  // Before it is here,
  Init(0, 1, "abcd");
  EXPECT_TRUE(WasToldSame(1));
  FetchHolding(2, 1, "abcd");  // and after.
  EXPECT_TRUE(WasToldSame(2));
}

TEST_F(BroadcastKeyTest, HandsTheValueToWhoHasAnother) {
  FetchHolding(1, 1, "abcx");
  Init(0, 1, "abcd");
  FetchHolding(2, 1, "");
  EXPECT_EQ(Value(1), "abcd");
  EXPECT_EQ(Value(2), "abcd");
}

TEST_F(BroadcastKeyTest, RemembersWhatAWorkerHoldsWhileItAsksAgainAndForgetsItWithTheStep) {
  FetchHolding(1, 1, "abcd");
  Fetch(1, 1);  // As a probe does, which says nothing of it.
  Init(0, 1, "abcd");
  EXPECT_TRUE(WasToldSame(1));
  Fetch(2, 1);
  EXPECT_EQ(Value(2), "abcd");
  Fetch(1, 2);
  Fetch(2, 2);
  Init(0, 2, "abcd");
  EXPECT_EQ(Value(1), "abcd") << "it said so of step 1";
}

TEST_F(BroadcastKeyTest, RefusesADigestOfAnotherSize) {
  FetchWith(1, 1, Buffer::CopyOf(std::vector<std::byte>(31)));
  EXPECT_THAT(std::string(Error(1).message()), HasSubstr("a digest of 32 bytes, not 31"));
}

TEST_F(BroadcastKeyTest, TakesARepeatAndRefusesASecondRootOrAnotherValue) {
  Init(0, 1, "abcd");
  Init(0, 1, "abcd");
  EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
  Init(0, 1, "abce");
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAlreadyExists);
  Init(1, 1, "abcd");
  EXPECT_THAT(std::string(Error(1).message()), HasSubstr("from rank 0, and rank 1 sends another"));
  Init(2, 2, "abc");
  EXPECT_THAT(std::string(Error(2).message()), HasSubstr("has 4 bytes, not 3"));
}

TEST_F(BroadcastKeyTest, WhoDoesWithoutAValueTakesPartAndIsSentNone) {
  FetchWith(1, 1, Buffer(), kFlagUnwanted);
  EXPECT_EQ(outbox_.LastTo(1)->header.type, FrameType::kWaiting);
  Init(0, 1, "aaaa");
  EXPECT_TRUE(WasToldSame(1));
  Fetch(2, 1);
  EXPECT_EQ(Value(2), "aaaa");
  Init(0, 2, "bbbb");
  FetchWith(1, 2, Buffer(), kFlagUnwanted);
  EXPECT_EQ(Value(2), "aaaa");  // the next value waits for it
  Fetch(2, 2);
  EXPECT_EQ(Value(2), "bbbb");
  EXPECT_TRUE(WasToldSame(1));
  EXPECT_EQ(outbox_.LastTo(1)->header.step, 2u);
  // It holds for that step alone.
  Init(1, 3, "cccc");
  Fetch(0, 3);
  Fetch(2, 3);
  Init(0, 4, "dddd");
  Fetch(1, 4);
  Fetch(2, 4);
  EXPECT_EQ(Value(1), "dddd");
}

TEST_F(BroadcastKeyTest, KeepsAValueUntilEverybodyHasAskedForTheNext) {
  Init(0, 1, "aaaa");
  Init(0, 2, "bbbb");
  EXPECT_EQ(outbox_.LastTo(0)->header.step, 1u);  // not in force yet
  Init(0, 2, "bbbb");
  EXPECT_THAT(RanksOf(*outbox_.LastTo(0)), ElementsAre(1, 2));
  Fetch(1, 1);
  EXPECT_EQ(Value(1), "aaaa");
  Fetch(1, 2);
  EXPECT_EQ(outbox_.LastTo(1)->header.type, FrameType::kWaiting);
  Fetch(2, 2);
  EXPECT_EQ(Value(1), "bbbb");
  EXPECT_EQ(Value(2), "bbbb");
  EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
  EXPECT_EQ(outbox_.LastTo(0)->header.step, 2u);
}

TEST_F(BroadcastKeyTest, ABroadcastDoesNotWaitForAWorkerThatLeaves) {
  Init(0, 1, "aaaa");
  Fetch(1, 1);
  Fetch(2, 1);
  shard_.leaving = {2};
  Fetch(1, 1);
  EXPECT_EQ(Value(1), "aaaa");
  Fetch(1, 2);
  EXPECT_EQ(Error(1).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(Error(1).message()),
              HasSubstr("broadcast of 'tensor': worker 2 is leaving"));
  for (const Step step : {2, 3}) {  // Asked anew, it is said again.
    Init(0, step, "bbbb");
    EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
  }
}

TEST_F(BroadcastKeyTest, ARootThatWaitsHearsThatAWorkerIsLeaving) {
  Init(0, 1, "aaaa");
  Init(0, 2, "bbbb");
  shard_.leaving = {2};
  Probe(0, 2);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
  Init(0, 3, "cccc");
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kAborted);
}

TEST_F(BroadcastKeyTest, ABroadcastGoesOnWhenItsRootIsTheOneThatLeaves) {
  Init(0, 1, "aaaa");
  shard_.leaving = {0};
  Fetch(1, 1);
  EXPECT_EQ(Value(1), "aaaa");
}

TEST_F(BroadcastKeyTest, KeepsNothingOnceEverybodyHasSaidThatItHasTheValue) {
  for (Step step = 1; step <= 3; ++step) {
    Init(0, step, "abcd");
    EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
    EXPECT_EQ(outbox_.LastTo(0)->header.step, step);
    for (const Rank rank : {1, 2}) {
      Fetch(rank, step);
      EXPECT_EQ(Value(rank), "abcd");
      EXPECT_FALSE(state_.value.bytes.empty());
      const size_t answers = outbox_.sent.size();
      Probe(rank, step);
      EXPECT_EQ(outbox_.sent.size(), answers);  // it asks nothing
    }
    EXPECT_TRUE(state_.value.bytes.empty());
    Probe(0, step);  // its reply was lost
    EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
    Init(0, step, "abcd");
    EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
    Fetch(1, step);
    EXPECT_EQ(Error(1).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST_F(BroadcastKeyTest, ANextValueWaitsForThoseWhoMayStillAskForTheOneBefore) {
  Init(0, 1, "aaaa");
  Fetch(1, 1);
  Probe(1, 1);
  Init(1, 2, "bbbb");
  EXPECT_EQ(state_.value.step, 1u);
  Fetch(2, 1);
  EXPECT_EQ(Value(2), "aaaa");
  Probe(2, 1);
  EXPECT_EQ(state_.value.step, 2u);
  EXPECT_EQ(outbox_.LastTo(1)->header.type, FrameType::kReply);
  Probe(0, 1);  // the root of the one before, whose reply was lost
  EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
  EXPECT_EQ(outbox_.LastTo(0)->header.step, 1u);
}

TEST_F(BroadcastKeyTest, CountsThoseWhoMayStillAskForTheValue) {
  constexpr int kWorkers = 8;
  shard_.SetMembership(MakeMembership(kWorkers, /*epoch=*/2));
  state_.SetRoster(MakePlaces(kWorkers));
  std::mt19937 random(1);
  Step most = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto rank = static_cast<Rank>(random() % kWorkers);
    const Step step = state_.value.step + random() % 2;
    epoch_ = 2;
    Frame frame = MakeBare(FrameType::kFetch, kKey, std::max<Step>(step, 1), rank, 4);
    frame.header.epoch = epoch_;
    switch (random() % 3) {
      case 0:
        Init(rank, state_.value.step + 1, "abcd");
        break;
      case 1:
        outbox_.Add(Target().OnFetch(WorkerNode(rank), frame));
        break;
      default:
        frame.header.type = FrameType::kProbe;
        outbox_.Add(Target().OnProbe(WorkerNode(rank), frame.header));
    }
    size_t behind = 0;
    for (size_t at = 0; at < kWorkers; ++at) behind += state_.IsBehind(PlaceAt(at)) ? 1 : 0;
    ASSERT_EQ(state_.num_behind, behind) << "after " << i;
    most = std::max(most, state_.value.step);
  }
  EXPECT_GT(most, 20u) << "values came into force";
}

TEST_F(BroadcastKeyTest, AThousandFetchesOfOneWorkerWaitAsOne) {
  for (int i = 0; i < 1000; ++i) Fetch(1, 1);
  outbox_.sent.clear();
  Init(0, 1, "abcd");
  EXPECT_EQ(Value(1), "abcd");
  EXPECT_EQ(outbox_.sent.size(), 2u) << "the value, and the root's reply";
  // Those that come now are all told the same bytes.
  const Buffer value = outbox_.LastTo(1)->payload;
  for (int i = 0; i < 1000; ++i) {
    Fetch(1, 1);
    ASSERT_EQ(outbox_.LastTo(1)->payload.data(), value.data());
  }
}

TEST_F(BroadcastKeyTest, AJobOfOneKeepsNothing) {
  shard_.SetMembership(MakeMembership(1, /*epoch=*/2));
  state_.SetRoster(MakePlaces(1));
  epoch_ = 2;
  Init(0, 1, "aaaa");
  EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
  EXPECT_TRUE(state_.value.bytes.empty());
}

TEST_F(BroadcastKeyTest, RefusesStepsThatCannotBeNext) {
  for (const Step step : {Step{0}, Step{1} << 60, Step{1025}}) {
    Init(0, step, "aaaa");
    EXPECT_EQ(Error(0).code(), absl::StatusCode::kInvalidArgument) << step;
    Fetch(1, step);
    EXPECT_EQ(Error(1).code(), absl::StatusCode::kInvalidArgument) << step;
    Probe(2, step);
    EXPECT_EQ(Error(2).code(), absl::StatusCode::kInvalidArgument) << step;
  }
  EXPECT_EQ(state_.value.step, 0u);
  EXPECT_THAT(state_.fetches, ElementsAre(0, 0, 0));
  Init(0, 1, "aaaa");
  EXPECT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply);
}

TEST_F(BroadcastKeyTest, AStepThatNeverHadAValueIsNotSaidToHaveHadOne) {
  Init(0, 3, "aaaa");
  Probe(0, 2);
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(BroadcastKeyTest, TellsARootWhoseValueWasLostToSendItAgain) {
  Probe(0, 1);
  EXPECT_THAT(RanksOf(*outbox_.LastTo(0)), ElementsAre(0));
}

// Its server was lost, and the new one learns of the key from all. The root has gone on before the
// newcomer asks.
TEST_F(BroadcastKeyTest, ANewcomerToARebuiltKeyStandsWhereTheOthersStoodWhenItCame) {
  KeyState state;
  state.plan = plan_;
  RebuildingKey(&state, &shard_).Begin();
  const auto report = [&](Rank rank, const KeyReport& report) {
    const Frame bare = MakeBare(FrameType::kReport, kKey, 0, rank, 4);
    (void)RebuildingKey(&state, &shard_)
        .OnReport(WorkerNode(rank), MakeFrame(bare.header, EncodeReport(report)));
  };
  report(0, {.done = 4, .open = 5, .is_root = true});
  report(1, {.done = 4});
  EXPECT_FALSE(state.rebuild.is_over());
  report(2, {});
  ASSERT_TRUE(state.rebuild.is_over());
  state_ = state.broadcast;
  Init(0, 5, "aaaa");
  Fetch(1, 5);
  EXPECT_EQ(Value(1), "aaaa");
  Frame position = MakeBare(FrameType::kFetch, kKey, 0, 2, 4);
  position.header.part = StatePart::kPosition;
  position.header.request = 1;
  outbox_.Add(Target().OnPosition(WorkerNode(2), position.header));
  const auto told = DecodePosition(outbox_.LastTo(2)->payload.span());
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(told->step, 4u);
  Fetch(2, 5);
  EXPECT_EQ(Value(2), "aaaa");
}

}  // namespace
}  // namespace bdn::testing
