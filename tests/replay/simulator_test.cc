#include "replay/simulator.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/replay_model.h"

namespace bdn {
namespace {

using testing::ElementsAre;

constexpr int64_t kMs = 1'000'000;
constexpr double kRate = 1e6;             // bytes a second, so that 1,000 bytes take 1 ms
constexpr uint32_t kPayload = 1000 - 96;  // with its header 1,000 bytes
constexpr uint64_t kLong = 1 << 20;       // values of a key that goes through the pool

// A model by hand: what an exchange of a key takes, and one step of each worker that computes for a
// while, begins exchanges, and waits for all of them.
class ModelByHand {
 public:
  ModelByHand(size_t workers, size_t servers, double rate) {
    for (size_t i = 0; i < workers; ++i) {
      model.workers.push_back({.name = "worker " + std::to_string(i),
                               .rank = static_cast<Rank>(i),
                               .link_rate = rate,
                               .threads = 1,
                               .max_bytes_in_flight = 1 << 20,
                               .steps = std::vector<StepProgram>(1)});
    }
    for (size_t i = 0; i < servers; ++i) {
      model.servers.push_back({.name = "server " + std::to_string(i),
                               .link_rate = rate,
                               .max_bytes_in_flight = 1 << 20});
    }
    model.step_numbers = {1};
    model.has_marks = true;
  }

  // Adds a key with its round of the step, and an exchange of each worker. `costs` are those of
  // all.
  void Key(uint32_t tensor, uint32_t server, ExchangeCosts costs, RoundCosts round) {
    const auto key = static_cast<uint32_t>(model.keys.size());
    model.keys.push_back({bdn::Key::Of(tensor, 0), "key", kLong, server, 0});
    round.key = costs.key = key;
    round.step = 1;
    costs.round = static_cast<uint32_t>(model.rounds.size());
    model.rounds.push_back(round);
    for (WorkerModel& worker : model.workers) worker.steps[0].exchanges.push_back(costs);
  }
  // Has a worker compute, begin all exchanges, and wait for them.
  void Program(size_t worker, int64_t compute_ns) {
    StepProgram& step = model.workers[worker].steps[0];
    const auto count = static_cast<uint32_t>(step.exchanges.size());
    step.items.push_back({ProgramItem::Kind::kCompute, 33, 0, 0, compute_ns});
    for (uint32_t i = 0; i < count; ++i) {
      step.items.push_back({ProgramItem::Kind::kStart, 0, i, 0, 0});
      step.awaited.push_back({0, i});
    }
    step.items.push_back({ProgramItem::Kind::kWait, 0, 0, count, 0});
  }
  ReplayResult Play() const {
    auto result = Simulate(model, true);
    if (!result.ok()) throw std::runtime_error(std::string(result.status().message()));
    return *std::move(result);
  }

  ReplayModel model;
};

ExchangeCosts Costs(int32_t priority = 0) {
  return {.priority = priority,
          .push_bytes = kPayload,
          .reply_bytes = kPayload,
          .encode_ns = 1 * kMs,
          .accept_ns = 1 * kMs,
          .decode_ns = 1 * kMs};
}

TEST(Simulator, AddsUpTheWayOfOneKey) {
  ModelByHand job(1, 1, kRate);
  job.Key(1, 0, Costs(), {.sum_ns = 1 * kMs, .rule_ns = 2 * kMs, .encode_ns = 3 * kMs});
  job.Program(0, 10 * kMs);
  const ReplayResult result = job.Play();
  // 10 computing, 1 encoding, 1 on the link, 1 accepted, 6 for the round, 1 on the link, 1 decoding
  EXPECT_THAT(result.step_ends[0], ElementsAre(21 * kMs));
  const ExchangeTimes& times = result.exchanges[0][0][0];
  EXPECT_EQ(times.sending, 11 * kMs);
  EXPECT_EQ(times.sent, 12 * kMs);
  EXPECT_EQ(times.arrived, 12 * kMs);  // cut through, not stored
  EXPECT_EQ(times.replied, 19 * kMs);
  EXPECT_EQ(times.reply_here, 20 * kMs);
}

TEST(Simulator, CountsWhatALinkTakesBeyondItsRate) {
  ModelByHand job(1, 1, kRate);
  ExchangeCosts costs = Costs();
  costs.send_ns = 3 * kMs;
  costs.reply_ns = 4 * kMs;
  job.Key(1, 0, costs, {});
  job.Program(0, 0);
  EXPECT_THAT(job.Play().step_ends[0], ElementsAre((1 + 1 + 3 + 1 + 1 + 4 + 1) * kMs));
}

TEST(Simulator, TakesTheUrgentKeyFirst) {
  ModelByHand job(1, 1, kRate);
  job.Key(1, 0, Costs(1), {});
  job.Key(2, 0, Costs(1), {});
  job.Key(3, 0, Costs(7), {});
  job.Program(0, 0);
  const ReplayResult result = job.Play();
  // The thread takes the first one, which is alone when it comes, then the most urgent of the rest.
  EXPECT_EQ(result.exchanges[0][0][0].encoding, 0);
  EXPECT_EQ(result.exchanges[0][0][2].encoding, 1 * kMs);
  EXPECT_EQ(result.exchanges[0][0][1].encoding, 2 * kMs);
}

TEST(Simulator, WaitsForTheSlowestWorker) {
  ModelByHand job(2, 1, 0);
  job.Key(1, 0, Costs(), {});
  job.Program(0, 1 * kMs);
  job.Program(1, 30 * kMs);
  const ReplayResult result = job.Play();
  EXPECT_THAT(result.step_ends[0], ElementsAre(33 * kMs));
  EXPECT_THAT(result.step_ends[1], ElementsAre(33 * kMs));
  EXPECT_EQ(result.rounds[0].last_worker, 1U);
  EXPECT_EQ(result.rounds[0].closed, 32 * kMs);
}

TEST(Simulator, WakesAShardOnceForPushesThatComeTogether) {
  ModelByHand job(4, 1, 0);
  ExchangeCosts costs = Costs();
  costs.accept_wake_ns = 5 * kMs;
  job.Key(1, 0, costs, {});
  for (size_t i = 0; i < 4; ++i) job.Program(i, 0);
  // All come at 1 ms; the shard wakes at 6 and takes 1 ms for each.
  EXPECT_EQ(job.Play().rounds[0].closed, 10 * kMs);
}

TEST(Simulator, SharesTheLinkOfAServerAmongItsWorkers) {
  ModelByHand job(4, 1, kRate);
  job.Key(1, 0, Costs(), {});
  for (size_t i = 0; i < 4; ++i) job.Program(i, 0);
  const ReplayResult result = job.Play();
  // All four pushes are sent from 1 to 2 ms, and come in one behind the other until 5 ms. The last
  // is accepted at 6; four replies leave until 10, and the last is decoded at 11.
  EXPECT_EQ(result.rounds[0].closed, 6 * kMs);
  EXPECT_EQ(*std::max_element(result.step_ends.begin(), result.step_ends.end()),
            std::vector<int64_t>({11 * kMs}));
}

TEST(Simulator, DividesTheKeysOfTwoServers) {
  // The thread of a server takes 10 ms for each push: two keys at one server, then one at each.
  ExchangeCosts costs = Costs();
  costs.accept_ns = 10 * kMs;
  for (const uint32_t second : {0U, 1U}) {
    ModelByHand job(1, 2, 0);
    job.Key(1, 0, costs, {});
    job.Key(2, second, costs, {});
    job.Program(0, 0);
    // 1 encoding, then 20 ms of the one server; or the second key's, which is encoded 1 ms later.
    EXPECT_THAT(job.Play().step_ends[0], ElementsAre((second == 0 ? 22 : 13) * kMs));
  }
}

TEST(Simulator, KeepsBytesInFlightWithinTheirBudget) {
  ModelByHand job(1, 1, kRate);
  job.Key(1, 0, Costs(), {});
  job.Key(2, 0, Costs(), {});
  job.Program(0, 0);
  EXPECT_EQ(job.Play().exchanges[0][0][1].encoding, 1 * kMs);
  job.model.workers[0].max_bytes_in_flight = kPayload;
  // The second one is encoded when the first has left.
  EXPECT_EQ(job.Play().exchanges[0][0][1].encoding, 2 * kMs);
}

TEST(Simulator, BeginsAKeyWhenItsLastExchangeHasEnded) {
  ModelByHand job(1, 1, 0);
  job.Key(1, 0, Costs(), {});
  WorkerModel& worker = job.model.workers[0];
  worker.steps.push_back(worker.steps[0]);
  job.model.step_numbers = {1, 2};
  job.model.rounds.push_back({.key = 0, .step = 2});
  worker.steps[1].exchanges[0].round = 1;
  // Nothing waits in the first step; the second one waits for both.
  worker.steps[0].items = {{ProgramItem::Kind::kStart, 0, 0, 0, 0}};
  worker.steps[1].items = {{ProgramItem::Kind::kStart, 0, 0, 0, 0},
                           {ProgramItem::Kind::kWait, 0, 0, 2, 0}};
  worker.steps[1].awaited = {{1, 0}, {0, 0}};
  EXPECT_THAT(job.Play().step_ends[0], ElementsAre(0, 6 * kMs));
}

TEST(Simulator, WaitsForWorkersThatAreNotRecorded) {
  ModelByHand job(1, 1, 0);
  job.Key(1, 0, Costs(), {.foreign_ns = 5 * kMs, .encode_ns = 1 * kMs});
  job.Program(0, 0);
  EXPECT_THAT(job.Play().step_ends[0], ElementsAre((1 + 1 + 5 + 1 + 1) * kMs));
}

TEST(Simulator, SaysThatItStandsStill) {
  ModelByHand job(1, 1, 0);
  job.Key(1, 0, Costs(), {});
  job.Program(0, 0);
  StepProgram& step = job.model.workers[0].steps[0];
  std::erase_if(step.items, [](const auto& i) { return i.kind == ProgramItem::Kind::kStart; });
  const auto result = Simulate(job.model, false);
  EXPECT_THAT(std::string(result.status().message()), testing::HasSubstr("stands still"));
}

TEST(Simulator, TakesEventsInProportionToItsExchanges) {
  const auto events = [](size_t workers, uint32_t keys) {
    ModelByHand job(workers, 4, kRate);
    for (uint32_t key = 0; key < keys; ++key) job.Key(key, key % 4, Costs(), {});
    for (size_t i = 0; i < workers; ++i) job.Program(i, 0);
    const auto result = Simulate(job.model, false);
    return result.ok() ? static_cast<double>(result->events) : 0;
  };
  const double few = events(50, 20);
  EXPECT_NEAR(events(200, 20) / few, 4, 0.01);
  EXPECT_NEAR(events(50, 80) / few, 4, 0.1);
  EXPECT_LT(few, 50 * 20 * 12);
}

}  // namespace
}  // namespace bdn
