#include <chrono>
#include <cmath>
#include <future>
#include <thread>

#include "common/transport/loopback.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"
#include "tests/support/normal_values.h"
#include "tests/support/pumped_network.h"
#include "tests/support/state_calls.h"
#include "tests/support/worker_rig.h"

// Whole workers and servers over a network that loses, repeats, damages and reorders frames.

namespace bdn::testing {
namespace {

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);
constexpr size_t kElements = 3000;  // three partitions

// A clock that goes by itself, and leaps when told to. A waiting thread notices within a
// millisecond.
class LeapingClock final : public Clock {
 public:
  absl::Time Now() const override { return steady_.Now() + (leapt_.Now() - absl::UnixEpoch()); }
  bool WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (Now() < deadline) changed->WaitFor(mu, absl::Milliseconds(1));
    return Now() < deadline;
  }
  void Leap(absl::Duration by) { leapt_.Advance(by); }

 private:
  SteadyClock steady_;
  ManualClock leapt_;  // from the epoch on
};

Worker::Options Impatient(int connections = 0) {
  Worker::Options options;
  options.probe_interval = absl::Milliseconds(3);
  options.connections = connections;
  return options;
}

// Returns the results of three workers after `steps` of training-like exchanges.
std::vector<Floats> Train(LocalCluster::TransportFactory factory, int steps, int connections = 0) {
  std::vector<Floats> sums(3, Floats(kElements, 0.0f));
  ClusterRig rig(3, {"--servers=2", "--min-compress-bytes=0", "--partition-bytes=4096"},
                 Impatient(connections), std::move(factory));
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids =
        worker.Declare({Tensor("w", kElements, "ef(onebit)", "ef(topk(ratio=0.1))")}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    std::vector<uint8_t> start(500, static_cast<uint8_t>(rank));
    ASSERT_TRUE(worker.Broadcast("start", std::as_writable_bytes(std::span(start)), 2, kLong).ok());
    EXPECT_EQ(start, std::vector<uint8_t>(500, 2));
    for (int step = 0; step < steps; ++step) {
      Floats data = Normal(kElements, 10 * step + rank);
      const auto result = PushPull(worker, ids->at(0), data);
      ASSERT_TRUE(result.ok()) << result.status();
      for (size_t i = 0; i < data.size(); ++i) sums[rank][i] += data[i];
    }
  });
  return sums;
}

TEST(DamagedNetwork, APathThatDamagesEveryReplyIsAnError) {
  PumpedNetwork network;
  network.net().CorruptPayload(OfType(FrameType::kReply));
  ClusterRig rig(1, {}, Impatient(), network.Factory());
  const auto ids = rig.worker(0).Declare({Tensor("w", 10, "none", "ef(onebit)")}, kLong);
  ASSERT_TRUE(ids.ok()) << ids.status();
  Floats data = Normal(10, 1);
  const absl::Status status = PushPull(rig.worker(0), ids->at(0), data).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(LossyNetwork, LeavingSaysWhatItWaitsForWhileItWaitsLong) {
  PumpedNetwork network;
  network.net().Drop(OfType(FrameType::kPush));
  LeapingClock clock;
  Registry telemetry;
  const auto cluster = *LocalCluster::Create({"--workers=1"}, network.Factory());
  const auto worker =
      *Worker::Create({}, &clock, &telemetry, cluster->Connect(), cluster->MakeTransport());
  const uint32_t id = worker->Declare({Tensor("w", 10)}, kLong)->front();
  Floats data(10, 1.0f);
  ASSERT_TRUE(worker->PushPull({.tensor = id, .data = {data.data(), DType::kFloat32, 10}}).ok());
  ::testing::internal::CaptureStderr();
  auto left =
      std::async(std::launch::async, [&] { return worker->Leave(absl::Seconds(200)).code(); });
  while (worker->Declare({}, kLong).ok()) std::this_thread::yield();  // until it is leaving
  clock.Leap(absl::Seconds(201));
  EXPECT_EQ(left.get(), absl::StatusCode::kDeadlineExceeded);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("still waiting: leaving once servers have"), std::string::npos) << log;
  EXPECT_NE(log.find("'w' step 1"), std::string::npos) << log;
}

// A request from a connection that has not greeted, as after a reconnect.
TEST(ServerWithoutAGreeting, AnswersARequestAboutAnySegment) {
  LoopbackNetwork network;
  const auto factory = [&network] { return network.MakeTransport(); };
  ClusterRig rig(1, {}, {}, factory);
  ASSERT_TRUE(rig.worker(0).Declare({Tensor("w", 1)}, kLong).ok());  // The server serves.
  const std::unique_ptr<Transport> stranger = network.MakeTransport();
  std::promise<FrameHeader> answered;
  stranger->Start([&](ConnectionId, const Frame& frame) { answered.set_value(frame.header); });
  const auto server = stranger->Connect({.endpoints = {EndpointOf("loopback://server-0")}});
  ASSERT_TRUE(server.ok()) << server.status();
  FrameHeader fetch;
  fetch.type = FrameType::kFetch;
  fetch.sender = 1;
  fetch.key = Key::Of(0, 0);
  fetch.num_elements = 30;
  fetch.element_offset = 20;
  stranger->Send(*server, Frame{fetch, {}}, [](const absl::Status&) {});
  std::future<FrameHeader> future = answered.get_future();
  ASSERT_EQ(future.wait_for(absl::ToChronoSeconds(kLong)), std::future_status::ready);
  const FrameHeader answer = future.get();
  EXPECT_EQ(answer.type, FrameType::kError);
  EXPECT_EQ(answer.element_offset, 0u);
  stranger->Close();
}

class FaultyNetwork : public ::testing::TestWithParam<uint64_t> {};

TEST_P(FaultyNetwork, GivesTheBitsOfACalmOne) {
  const std::vector<Floats> calm = Train(nullptr, 15);
  PumpedNetwork network;
  network.net().Randomize(GetParam(),
                          {.drop = 0.05, .duplicate = 0.1, .corrupt = 0.05, .reorder = true});
  const std::vector<Floats> faulty = Train(network.Factory(), 15);
  network.net().ClearFaults();
  EXPECT_EQ(calm[0], calm[1]);
  EXPECT_EQ(faulty, calm);
}

TEST_P(FaultyNetwork, GivesTheBitsOfACalmOneWithThreeConnectionsToAServer) {
  const std::vector<Floats> calm = Train(nullptr, 15);
  PumpedNetwork network;
  network.net().Randomize(GetParam(),
                          {.drop = 0.05, .duplicate = 0.1, .corrupt = 0.05, .reorder = true});
  const std::vector<Floats> faulty = Train(network.Factory(), 15, /*connections=*/3);
  network.net().ClearFaults();
  EXPECT_EQ(faulty, calm);
}

// The sum of what both workers pushed came back or is still owed, although frames are lost and
// repeated, one step in five is not finite at one of them, and the loss scale moves.
TEST_P(FaultyNetwork, ErrorFeedbackLosesNothing) {
  constexpr size_t kN = 1000;
  PumpedNetwork network;
  network.net().Randomize(GetParam(),
                          {.drop = 0.05, .duplicate = 0.1, .corrupt = 0.05, .reorder = true});
  std::vector<double> balance(kN, 0.0);  // given - received - owed; the mean over the workers
  Mutex mu;
  {
    ClusterRig rig(2, {"--min-compress-bytes=0"}, Impatient(), network.Factory());
    rig.OnEach([&](Worker& worker, int rank) {
      const auto ids = worker.Declare({Tensor("w", kN, "ef(onebit(block=32))", "none")}, kLong);
      ASSERT_TRUE(ids.ok()) << ids.status();
      std::vector<double> mine(kN, 0.0);
      for (int step = 0; step < 40; ++step) {
        const float scale = step < 20 ? 1024.0f : 256.0f;
        const bool skipped = step % 5 == 3;
        const Floats gradient = Normal(kN, 10 * step + rank);
        Floats data = gradient;
        for (float& x : data) x *= scale;
        if (skipped && rank == step % 2) data[step] = std::nanf("");
        const auto result = PushPull(worker, ids->at(0), data, scale);
        ASSERT_TRUE(result.ok()) << result.status();
        ASSERT_EQ(result->nonfinite, skipped);
        if (skipped) continue;
        for (size_t i = 0; i < kN; ++i) mine[i] += gradient[i] - data[i] / scale;
      }
      Floats owed(kN);
      ASSERT_TRUE(GetState(worker, ids->at(0), LinkState::kResidual, owed).ok());
      MutexLock lock(&mu);
      for (size_t i = 0; i < kN; ++i) balance[i] += (mine[i] - owed[i]) / 2;
    });
    network.net().ClearFaults();
  }
  for (size_t i = 0; i < kN; ++i) ASSERT_NEAR(balance[i], 0.0, 1e-4) << i;
}

// Returns the weights of three workers after `steps` on weights that the servers hold, set and
// fetched over the same network; after every step their replicas are the servers'.
std::vector<Floats> TrainWeights(LocalCluster::TransportFactory factory, const std::string& rule,
                                 const std::string& pull, int steps) {
  std::vector<Floats> results(3, Floats(kElements));
  ClusterRig rig(3, {"--servers=2", "--min-compress-bytes=0", "--partition-bytes=4096"},
                 Impatient(), std::move(factory));
  rig.OnEach([&](Worker& worker, int rank) {
    TensorDeclaration tensor = Tensor("w", kElements, "int4", pull);
    tensor.rule = rule;
    const auto ids = worker.Declare({tensor}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    const uint32_t id = ids->at(0);
    for (const StatePart part : {StatePart::kWeights, StatePart::kMoment0}) {
      const absl::Status set =
          rank == 0 ? SetServerState(worker, id, part, Normal(kElements, 7), 0, kLong)
                    : absl::OkStatus();
      ASSERT_TRUE(set.ok()) << set;
    }
    ASSERT_TRUE(worker.Barrier("set", kLong).ok());
    // Rank 2 takes its replica from the first reply's fetch.
    if (rank != 2) {
      ASSERT_TRUE(FetchWeights(worker, id, results[rank], kLong).ok());
    }
    for (int step = 1; step <= steps; ++step) {
      results[rank] = Normal(kElements, 10 * step + rank);
      const auto ticket =
          worker.PushPull({.tensor = id,
                           .data = {results[rank].data(), DType::kFloat32, kElements},
                           .learning_rate = 0.1f});
      const auto result = worker.Wait(ticket.value(), kLong);
      ASSERT_TRUE(result.ok()) << result.status();
      const bool delta = pull != "sign";
      Floats servers(kElements);
      const absl::Status told = GetServerState(
          worker, id, delta ? StatePart::kReplica : StatePart::kWeights, servers, kLong);
      ASSERT_TRUE(told.ok()) << told;
      EXPECT_EQ(results[rank], servers) << step;
      ASSERT_TRUE(worker.Barrier("step " + std::to_string(step), kLong).ok());
    }
  });
  return results;
}

TEST_P(FaultyNetwork, ReplicasStayTheServers) {
  for (const auto& [rule, pull] :
       {std::pair("adamw", "delta(int4)"), std::pair("sign_momentum", "sign")}) {
    const std::vector<Floats> calm = TrainWeights(nullptr, rule, pull, 6);
    PumpedNetwork network;
    network.net().Randomize(GetParam(),
                            {.drop = 0.05, .duplicate = 0.1, .corrupt = 0.05, .reorder = true});
    const std::vector<Floats> faulty = TrainWeights(network.Factory(), rule, pull, 6);
    network.net().ClearFaults();
    EXPECT_EQ(calm[0], calm[2]);
    EXPECT_EQ(faulty, calm);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FaultyNetwork, ::testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace bdn::testing
