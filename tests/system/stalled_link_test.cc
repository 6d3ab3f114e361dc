// A worker's link stalls for a while and goes on: nothing is lost, much comes twice and late, and
// every sum is right and counts each push once. Tested by a clock of the test over a network in the
// process, and over TCP.

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/forwarding.h"
#include "common/transport/zmq/zmq_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/local_control_plane.h"
#include "server/server.h"
#include "tests/support/simulated_job.h"
#include "tests/support/worker_rig.h"
#include "tests/transport/silent_proxy.h"

namespace bdn::testing {
namespace {

using ::testing::Each;

// ---- In the process

constexpr int kWorkers = 3;
constexpr int kServers = 2;
constexpr int kKeys = 6;
constexpr int kSteps = 4;
constexpr double kMean = 2;  // of 1, 2 and 3

std::vector<int> Keys(int begin) {
  std::vector<int> keys(kKeys);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

// When worker 0's link stalls, in step 2, and how often it asks. 10 s are 13 times the shorter
// interval, after which a worker connects anew, and too little for that with the longer.
struct Stall {
  const char* name;
  bool before_pushes;
  bool before_others;
  absl::Duration probe_interval;
  bool connects_anew;
};

class StalledLink : public ::testing::TestWithParam<Stall> {
 protected:
  SimulatedJob job_{{.workers = kWorkers,
                     .servers = kServers,
                     .dense_keys = kKeys,
                     .broadcast_keys = kKeys,
                     .probe_interval = GetParam().probe_interval}};
};

TEST_P(StalledLink, ComesBackAfterTenSecondsAndCountsEverythingOnce) {
  const Stall& stall = GetParam();
  const auto ask = [&](int worker, Step step) {
    job_.Push(worker, Keys(0), step);
    worker == 1 ? job_.Init(worker, Keys(kKeys), step) : job_.Fetch(worker, Keys(kKeys), step);
  };
  for (Step step = 1; step <= kSteps; ++step) {
    const bool stalls = step == 2;
    if (stalls && stall.before_pushes) job_.Stall(0);
    for (int worker = 0; worker < kWorkers; ++worker) {
      // Frames that have arrived when the link stalls have their answers on the way.
      if (worker == 1 && !stall.before_others) job_.Deliver();
      if (worker == 1 && stalls) job_.Stall(0);
      ask(worker, step);
    }
    job_.Deliver();
    if (!stalls) continue;
    const uint64_t before = job_.results();
    for (int i = 0; i < 40; ++i) {
      job_.Advance(absl::Milliseconds(250));
      job_.Deliver();
    }
    EXPECT_EQ(job_.results(), before) << "the worker that stalls has no part in anything";
    EXPECT_GE(job_.worker_stats(0).probes_sent, kKeys);
    EXPECT_EQ(job_.worker_stats(0).reconnects > 0, stall.connects_anew);
    job_.network().Duplicate(AnyFrame(), 1000);
    job_.Release(0);
    job_.network().Duplicate(AnyFrame());
    for (int i = 0; i < 40; ++i) {
      job_.Deliver();
      job_.Advance(absl::Milliseconds(250));
    }
    job_.network().ClearFaults();
  }
  const ShardStats servers = job_.server_stats();
  EXPECT_EQ(servers.pushes, uint64_t{kWorkers * kKeys * kSteps});
  EXPECT_EQ(servers.rounds, uint64_t{kKeys * kSteps});
  EXPECT_EQ(servers.rounds_failed, 0u);
  EXPECT_EQ(job_.results(), uint64_t{2 * kWorkers * kKeys * kSteps});
  const double broadcasts = 2 * kKeys * (1 + 2 + 3 + 4);  // its step, of all but the root
  EXPECT_EQ(job_.first_elements(), kMean * kWorkers * kKeys * kSteps + broadcasts);
}

INSTANTIATE_TEST_SUITE_P(
    All, StalledLink,
    ::testing::Values(Stall{"BeforeItsPushes", true, true, absl::Seconds(1), false},
                      Stall{"BeforeItsPushesForLong", true, true, absl::Milliseconds(500), true},
                      Stall{"BeforeTheirAnswers", false, false, absl::Seconds(1), false},
                      Stall{"BeforeTheirAnswersForLong", false, false, absl::Milliseconds(500),
                            true},
                      Stall{"WhileAllIsOnItsWay", false, true, absl::Milliseconds(500), true}),
    [](const auto& info) { return std::string(info.param.name); });

// ---- Over TCP

constexpr absl::Duration kLong = absl::Minutes(1);
constexpr size_t kElements = 300'000;  // one key of 1.2 MB, which takes several reads

// Reaches its listener by a proxy, which it makes.
class RelayedTransport final : public ForwardingTransport {
 public:
  RelayedTransport(std::unique_ptr<Transport> inner, std::unique_ptr<SilentProxy>* proxy)
      : ForwardingTransport(std::move(inner)), proxy_(*proxy) {}

  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override {
    if (proxy_ == nullptr) proxy_ = std::make_unique<SilentProxy>(NetworkUrl(peer.endpoints));
    Peer relayed = peer;
    Advertise(proxy_->address(), &relayed.endpoints);
    return inner()->Connect(relayed);
  }

 private:
  std::unique_ptr<SilentProxy>& proxy_;
};

struct TcpStall {
  const char* name;
  int64_t after_bytes;            // of the step in which it stalls
  absl::Duration probe_interval;  // of workers
  absl::Duration silence;         // after six times of it ZeroMQ gives up a connection
  uint64_t rounds;                // that the server has closed then
  bool connects_anew;             // the worker, which ZeroMQ does otherwise
};

class StalledTcpLink : public ::testing::TestWithParam<TcpStall> {
 protected:
  StalledTcpLink() {
    std::thread start([this] { ASSERT_TRUE(server_.Start().ok()); });
    std::vector<std::thread> joins;
    for (int rank = 0; rank < 2; ++rank) {
      joins.emplace_back([this, rank] {
        Worker::Options options;
        options.join.wanted_rank = rank;
        options.probe_interval = GetParam().probe_interval;
        auto transport = *MakeZmqTransport({.silence_timeout = GetParam().silence});
        if (rank == 0) {
          transport = std::make_unique<RelayedTransport>(std::move(transport), &proxy_);
        }
        workers_[rank] = *Worker::Create(options, &clock_, &telemetry_[rank], scheduler_.Connect(),
                                         std::move(transport));
      });
    }
    for (std::thread& join : joins) join.join();
    start.join();
  }
  ~StalledTcpLink() override {
    std::thread other([this] { (void)workers_[1]->Leave(kLong); });
    (void)workers_[0]->Leave(kLong);
    other.join();
    for (auto& worker : workers_) worker.reset();
  }

  // Returns a counter of worker 0.
  uint64_t Counter(const std::string& name) {
    for (const Sample& sample : telemetry_[0].Collect()) {
      if (sample.metric->name == name) return sample.value;
    }
    ADD_FAILURE() << "no counter " << name;
    return 0;
  }

  const SteadyClock clock_;
  Registry telemetry_[2];
  Registry server_telemetry_;
  LocalScheduler scheduler_{{.job_id = "job", .num_workers = 2, .num_servers = 1}, &clock_};
  std::unique_ptr<ControlPlane> control_ = scheduler_.Connect();
  std::unique_ptr<Transport> transport_ =
      *MakeZmqTransport({.silence_timeout = GetParam().silence});
  Server server_{{}, &server_telemetry_, control_.get(), transport_.get()};
  std::unique_ptr<SilentProxy> proxy_;
  std::unique_ptr<Worker> workers_[2];
};

TEST_P(StalledTcpLink, GoesOnWhereItStoodAndCountsEverythingOnce) {
  constexpr int kSteps = 4;
  std::thread other([&] { (void)workers_[1]->Declare({Tensor("w", kElements)}, kLong); });
  const uint32_t id = workers_[0]->Declare({Tensor("w", kElements)}, kLong)->at(0);
  other.join();
  for (int step = 0; step < kSteps; ++step) {
    const bool stalls = step == 2;
    std::vector<std::vector<float>> data;
    for (const float value : {1.0f, 2.0f}) {
      data.emplace_back(kElements, static_cast<float>(step) + value);
    }
    if (stalls) proxy_->StallAfter(GetParam().after_bytes);
    const uint64_t asked = Counter("probes_sent");
    const uint64_t reconnected = Counter("reconnects");
    const int accepted = proxy_->num_accepted();
    std::vector<TicketId> tickets;
    for (int rank = 0; rank < 2; ++rank) {
      tickets.push_back(*workers_[rank]->PushPull(
          {.tensor = id, .data = {data[rank].data(), DType::kFloat32, kElements}}));
    }
    if (stalls) {
      // Until the worker has asked in vain, and it or ZeroMQ has given the connection up.
      while (!proxy_->is_stalled()) std::this_thread::yield();
      while (Counter("probes_sent") < asked + 3) std::this_thread::yield();
      while (Counter("reconnects") == reconnected && proxy_->num_accepted() == accepted) {
        std::this_thread::yield();
      }
      EXPECT_EQ(Counter("reconnects") > reconnected, GetParam().connects_anew);
      EXPECT_EQ(server_.stats().shards.rounds, GetParam().rounds);
      proxy_->GoOn();
    }
    for (int rank = 0; rank < 2; ++rank) {
      const auto result = workers_[rank]->Wait(tickets[rank], kLong);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_THAT(data[rank], Each(static_cast<float>(step) + 1.5f));
    }
  }
  EXPECT_EQ(server_.stats().shards.pushes, uint64_t{2 * kSteps});
  EXPECT_EQ(server_.stats().shards.rounds, uint64_t{kSteps});
  EXPECT_EQ(server_.stats().shards.rounds_failed, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    All, StalledTcpLink,
    ::testing::Values(
        TcpStall{"BetweenFrames", 0, absl::Milliseconds(20), absl::Seconds(10), 2, true},
        TcpStall{"InTheMiddleOfAPush", 500'000, absl::Milliseconds(20), absl::Seconds(10), 2, true},
        TcpStall{"InTheMiddleOfAReply", 1'700'000, absl::Milliseconds(20), absl::Seconds(10), 3,
                 true},
        TcpStall{"UntilZeroMqGivesTheConnectionUp", 500'000, absl::Milliseconds(200),
                 absl::Milliseconds(150), 2, false}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace bdn::testing
