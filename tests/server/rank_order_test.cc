#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"
#include "tests/support/normal_values.h"

// A round adds its contributions as their turn in rank order comes. Whatever the order in which
// they arrive, the answers are those of a round that adds all of them at its end, and no more is
// held than the sum and a few payloads.

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;

// An event in a step besides its pushes.
enum class Event {
  kNone,
  kNewEpoch,
  kLeaves,
  kOtherStep,
  kOtherCodec,
  kOtherRate,
  kOtherProgramStep
};

// One step: what each worker pushes, and what happens after some of that has come.
struct Script {
  std::vector<Frame> by_rank;
  std::vector<Rank> arrived;  // before the event
  Event event = Event::kNone;
  Frame culprit;  // of an event that is a push
};

class Job {
 public:
  Job(int workers, const KeyOptions& options) : workers_(workers), shard_({.self = kServerNode}) {
    shard_.SetMembership(MakeMembership(workers));
    shard_.AddKey(MakePlan(kKey, options));
    shard_.SetCatalogueVersion(1);
    size_t begin = 0;
    for (const size_t elements : options.segments) {
      if (options.rule == "mean") break;
      FrameHeader header = StateHeader(FrameType::kInit,
                                       {.part = StatePart::kWeights,
                                        .key = kKey,
                                        .num_elements = shard_.Find(kKey)->plan->entry.elements,
                                        .element_offset = begin},
                                       0, static_cast<uint32_t>(begin + 1));
      StampHeader({.sender = WorkerNode(0), .epoch = 1}, &header);
      (void)shard_.OnFrame(WorkerNode(0), MakeFrame(header, BytesOf(Normal(elements, 3))));
      begin += elements;
    }
  }

  void Arrive(Frame frame) {
    frame.header.epoch = epoch_;
    outbox_.Add(shard_.OnFrame(frame.header.sender, frame));
  }
  void Happen(const Script& script) {
    if (script.event == Event::kNewEpoch) shard_.SetMembership(MakeMembership(workers_, ++epoch_));
    if (script.event == Event::kLeaves) outbox_.Add(shard_.SetLeaving({workers_ - 1}));
    if (script.event == Event::kLeaves) outbox_.Add(shard_.SetLeaving({}));
    if (script.culprit.header.step != 0) Arrive(script.culprit);
  }
  // Plays a step; the order of arrival is `order`, of ranks.
  void Play(const Script& script, const std::vector<Rank>& order, std::mt19937* repeats) {
    outbox_.sent.clear();
    std::vector<Rank> seen;
    const auto arrive = [&](Rank rank) {
      Arrive(script.by_rank[rank]);
      seen.push_back(rank);
      most_held_ = std::max(most_held_, Held());
      if (repeats != nullptr && (*repeats)() % 3 == 0) {
        Arrive(script.by_rank[seen[(*repeats)() % seen.size()]]);
      }
    };
    const auto has_arrived = [&](Rank rank) {
      return std::find(script.arrived.begin(), script.arrived.end(), rank) != script.arrived.end();
    };
    for (const Rank rank : order) {
      if (has_arrived(rank)) arrive(rank);
    }
    Happen(script);
    const bool starts_over = script.event == Event::kNewEpoch || script.event == Event::kLeaves;
    for (const Rank rank : order) {
      if (starts_over || !has_arrived(rank)) arrive(rank);
    }
  }
  size_t Held() const {
    const Round& round = shard_.Find(kKey)->dense.round;
    return round.payload_bytes() + round.sum_bytes();
  }
  size_t most_held() const { return most_held_; }

  // The last answer to everybody, and what the server holds then.
  std::string Outcome() const {
    std::string text;
    for (Rank rank = 0; rank < workers_; ++rank) {
      const Frame* last = outbox_.LastTo(rank);
      if (last == nullptr || last->header.type == FrameType::kWaiting) continue;
      // An error is told under the step that was asked for.
      const bool is_error = last->header.type == FrameType::kError;
      absl::StrAppendFormat(&text, "%d: %s step %d flags %d base %d: ", rank,
                            FrameTypeName(last->header.type), is_error ? 0 : last->header.step,
                            last->header.flags, last->header.base_step);
      text.append(reinterpret_cast<const char*>(last->payload.data()), last->payload.size());
    }
    return text;
  }
  // Everything that the shard counts, against its key's cost.
  uint64_t most_in_all() const { return shard_.most_held(); }
  bool CountsAreRight() const { return shard_.held() == HeldBy(*shard_.Find(kKey)); }
  KeyCost Cost() const { return shard_.Find(kKey)->plan->CostFor(workers_); }
  const StateParts& parts() const { return shard_.Find(kKey)->dense.parts; }
  const ServerShard& shard() const { return shard_; }

 private:
  const int workers_;
  Epoch epoch_ = 1;
  Outbox outbox_;
  ServerShard shard_;
  size_t most_held_ = 0;
};

class RankOrderTest : public ::testing::TestWithParam<KeyOptions> {
 protected:
  static constexpr int kWorkers = 11;

  Frame PushOf(Rank rank, Step step, std::mt19937& random) {
    const KeyOptions& options = GetParam();
    const size_t n = std::accumulate(options.segments.begin(), options.segments.end(), size_t{0});
    const uint32_t chance = random() % 100;
    Frame push;
    if (chance < 8) {
      push = MakeBare(FrameType::kPush, kKey, step, rank, n, kFlagAbsent);
    } else if (chance < 9) {
      push = MakeBare(FrameType::kPush, kKey, step, rank, n, kFlagNonFinite);
    } else {
      Floats values = Normal(n, random());
      if (chance < 11) values[0] = values[n / 2] = std::numeric_limits<float>::max();
      push = MakePush(kKey, step, rank, values, options);
    }
    push.header.weight = 1.0f + static_cast<float>(random() % 3) / 7;
    push.header.learning_rate = 0.01f;
    push.header.program_steps = 7;
    return push;
  }
  Script MakeScript(Step step, std::mt19937& random) {
    Script script;
    for (Rank rank = 0; rank < kWorkers; ++rank) {
      script.by_rank.push_back(PushOf(rank, step, random));
    }
    const size_t count = 1 + random() % (kWorkers - 2);
    for (size_t i = 0; i < count; ++i) {
      script.arrived.push_back(static_cast<Rank>(random() % (kWorkers - 1)));
    }
    constexpr Event kEvents[] = {
        Event::kNone,      Event::kNone,       Event::kNewEpoch,  Event::kLeaves,
        Event::kOtherStep, Event::kOtherCodec, Event::kOtherRate, Event::kOtherProgramStep};
    script.event = kEvents[random() % std::size(kEvents)];
    constexpr Rank kCulprit = kWorkers - 1;  // has not arrived
    Frame push = MakePush(kKey, step, kCulprit, Normal(Elements(), 1), GetParam());
    push.header.learning_rate = 0.01f;
    push.header.program_steps = 7;
    if (script.event == Event::kOtherRate) push.header.learning_rate = 0.02f;
    if (script.event == Event::kOtherProgramStep) push.header.program_steps = 8;
    if (script.event == Event::kOtherStep) push.header.step = step + 1;
    if (script.event == Event::kOtherCodec) push.header.codec = 200;
    if (script.event >= Event::kOtherStep) script.culprit = push;
    return script;
  }
  size_t Elements() const {
    const auto& segments = GetParam().segments;
    return std::accumulate(segments.begin(), segments.end(), size_t{0});
  }
};

TEST_P(RankOrderTest, GivesTheSameAnswersInAnyOrderOfArrival) {
  std::mt19937 random(17);
  // From the last to the first everything waits for rank 0, and is added at once at the end.
  std::vector<Rank> backward(kWorkers);
  std::iota(backward.rbegin(), backward.rend(), 0);
  std::vector<Rank> forward(backward.rbegin(), backward.rend());
  for (int run = 0; run < 6; ++run) {
    Job whole(kWorkers, GetParam());
    Job ordered(kWorkers, GetParam());
    Job shuffled(kWorkers, GetParam());
    for (Step step = 1; step <= 30; step += 3) {
      const Script script = MakeScript(step, random);
      std::vector<Rank> order = forward;
      std::shuffle(order.begin(), order.end(), random);
      const ServerShard snapshot = shuffled.shard();  // copies do not disturb each other
      const StateParts before = shuffled.parts();
      whole.Play(script, backward, nullptr);
      ordered.Play(script, forward, &random);
      shuffled.Play(script, order, &random);
      ASSERT_FALSE(whole.Outcome().empty());
      ASSERT_TRUE(ordered.Outcome() == whole.Outcome()) << step;
      ASSERT_TRUE(shuffled.Outcome() == whole.Outcome()) << step;
      ASSERT_EQ(ordered.parts(), whole.parts()) << step;
      ASSERT_EQ(shuffled.parts(), whole.parts()) << step;
      ASSERT_EQ(snapshot.Find(kKey)->dense.parts, before) << step;
      EXPECT_EQ(whole.Held() + ordered.Held() + shuffled.Held(), 0u) << step;
    }
    EXPECT_TRUE(ordered.CountsAreRight() && shuffled.CountsAreRight());
    const KeyCost cost = whole.Cost();
    EXPECT_LE(whole.most_in_all(), cost.in_order() + cost.late);
    EXPECT_LE(shuffled.most_in_all(), cost.in_order() + cost.late);
  }
}

TEST_P(RankOrderTest, HoldsNoMorePerWorkerWhenPushesComeInOrder) {
  std::vector<size_t> most;
  for (const int workers : {40, 160}) {
    Job job(workers, GetParam());
    Script script;
    std::vector<Rank> order;
    for (Rank rank = 0; rank < workers; ++rank) {
      Frame push = MakePush(kKey, 1, rank, Normal(Elements(), 1), GetParam());
      push.header.learning_rate = 0.01f;
      script.by_rank.push_back(push);
      order.push_back(rank);
    }
    job.Play(script, order, nullptr);
    EXPECT_EQ(job.Held(), 0u);
    EXPECT_LE(job.most_in_all(), job.Cost().in_order());
    most.push_back(job.most_held());
  }
  EXPECT_EQ(most[0], most[1]);
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, RankOrderTest,
    ::testing::Values(
        KeyOptions{.segments = {700}}, KeyOptions{.segments = {300, 5, 64}},
        KeyOptions{.push = "fp16", .pull = "ef(onebit)", .segments = {700}},
        KeyOptions{.push = "int8", .pull = "dither", .segments = {700, 90}},
        KeyOptions{.push = "int8(hadamard=32)", .pull = "none", .segments = {700, 90}},
        KeyOptions{.push = "onebit(block=32)", .pull = "onebit", .segments = {700}},
        KeyOptions{.push = "twobit(block=32)", .pull = "ef(twobit)", .segments = {700, 90}},
        KeyOptions{.push = "topk(ratio=0.2)", .pull = "topk(ratio=0.1)", .segments = {700}},
        KeyOptions{.push = "randomk(ratio=0.3)", .pull = "randomk(ratio=0.3)", .segments = {700}},
        KeyOptions{.push = "randomk(ratio=0.3)", .pull = "none", .segments = {700}},
        KeyOptions{.push = "blocks(ratio=0.5,size=8)",
                   .pull = "blocks(ratio=0.5,size=8)",
                   .segments = {200, 77}},
        KeyOptions{.push = "sketch(rows=3,columns=0.3)",
                   .pull = "sketch(rows=3,columns=0.3)",
                   .segments = {300}},
        KeyOptions{.push = "none", .pull = "none", .segments = {700}, .rule = "adamw"},
        KeyOptions{.push = "int8", .pull = "delta(int4)", .segments = {96, 40}, .rule = "adamw"},
        KeyOptions{.push = "onebit(block=32)",
                   .pull = "sign",
                   .segments = {700},
                   .rule = "sign_momentum"}));

TEST_F(ShardFixture, APushThatIsNotFiniteDropsWhatTheRoundHolds) {
  Start(5, {.segments = {100}});
  for (const Rank rank : {0, 1, 3}) Push(rank, 1, Normal(100, rank));
  EXPECT_GT(State().round.payload_bytes() + State().round.sum_bytes(), 0u);
  PushFlagged(4, 1, kFlagNonFinite);
  EXPECT_EQ(State().round.payload_bytes() + State().round.sum_bytes(), 0u);
  Push(2, 1, Normal(100, 2));
  EXPECT_EQ(Reply().header.flags, kFlagNonFinite);
}

TEST_F(ShardFixture, WhatWaitsForItsTurnHasAnEnd) {
  MemoryBudget budget(3 * 400);
  shard_ = ServerShard({.self = kServerNode, .budget = &budget});
  shard_.SetMembership(MakeMembership(6));
  options_ = {.segments = {100}};
  shard_.AddKey(MakePlan(kKey, options_));
  for (const Rank rank : {5, 4, 3}) Push(rank, 1, Normal(100, rank));
  EXPECT_EQ(outbox_.sent.size(), 0u);
  Push(2, 1, Normal(100, 2));
  EXPECT_EQ(Error(0).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(Error(0).message()),
              HasSubstr("the push of rank 2 must wait for that of rank 0"));
  EXPECT_THAT(std::string(Error(0).message()), HasSubstr("setting max-bytes"));
  EXPECT_LT(shard_.held().total(), 400u) << "the error, which is kept";
  // In rank order the same workers need less, and go on.
  for (const Rank rank : {0, 1, 2, 3, 4, 5}) Push(rank, 2, Normal(100, rank));
  EXPECT_EQ(Reply().header.type, FrameType::kReply);
}

}  // namespace
}  // namespace bdn::testing
