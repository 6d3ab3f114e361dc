// Whole workers and servers over libfabric, beside the same over the loopback transport.

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/loopback.h"
#include "gtest/gtest.h"
#include "tests/support/normal_values.h"
#include "tests/support/pumped_network.h"
#include "tests/support/worker_rig.h"

namespace bdn::testing {
namespace {

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);
constexpr size_t kElements =
    50000;  // pushes and replies of several partitions, written and as messages
constexpr int kWorkers = 3;
constexpr int kServers = 2;

// Fabrics whose peers find each other over another network, which outlives it.
class FabricNetwork {
 public:
  FabricNetwork(std::string provider, LocalCluster::TransportFactory network,
                absl::Duration silence = absl::Seconds(10))
      : provider_(std::move(provider)), network_(std::move(network)), silence_(silence) {}

  std::unique_ptr<FabricTransport> MakeTransport() {
    FabricOptions options;
    options.endpoint.provider = provider_;
    options.window_bytes = uint64_t{4} << 20;
    options.silence_timeout = silence_;
    return *FabricTransport::Make(network_(), options);
  }
  LocalCluster::TransportFactory Factory() {
    return [this] {
      auto made = MakeTransport();
      MutexLock lock(&mu_);
      last_made_ = made.get();
      return made;
    };
  }
  // How often a worker of the cluster, while it is there, has met servers.
  uint64_t num_meetings() {
    MutexLock lock(&mu_);
    return last_made_->num_meetings();
  }

 private:
  const std::string provider_;
  const LocalCluster::TransportFactory network_;
  const absl::Duration silence_;
  Mutex mu_;
  FabricTransport* last_made_ ABSL_GUARDED_BY(mu_) = nullptr;
};

struct Trained {
  int steps = 0;
  std::vector<Floats> sums;  // of each worker: of all that it got
};

// Until `is_last(step)` says so to worker 0: all of them do one step more.
Trained Train(const LocalCluster::TransportFactory& factory,
              const std::function<bool(int step)>& is_last) {
  Trained trained;
  trained.sums.assign(kWorkers, Floats(kElements, 0.0f));
  Worker::Options impatient;
  impatient.probe_interval = absl::Milliseconds(20);
  ClusterRig rig(
      kWorkers,
      {absl::StrCat("--servers=", kServers), "--min-compress-bytes=0", "--partition-bytes=65536"},
      impatient, factory);
  std::atomic<int> end = std::numeric_limits<int>::max();
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = worker.Declare(
        {Tensor("dense", kElements), Tensor("coded", kElements, "ef(onebit)", "ef(onebit)")},
        kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    // Nobody is further than a step before worker 0.
    for (int step = 0; step < end; ++step) {
      if (rank == 0 && end > step + 2 && is_last(step)) end = step + 2;
      for (const uint32_t id : *ids) {
        Floats data = Normal(kElements, 10 * step + rank);
        const auto result = PushPull(worker, id, data);
        ASSERT_TRUE(result.ok()) << result.status();
        for (size_t i = 0; i < kElements; ++i) trained.sums[rank][i] += data[i];
      }
    }
  });
  trained.steps = end;
  return trained;
}

LocalCluster::TransportFactory Over(LoopbackNetwork* loopback) {
  return [loopback] { return loopback->MakeTransport(); };
}

void ExpectAsOverLoopback(const Trained& trained) {
  LoopbackNetwork loopback;
  const Trained expected =
      Train(Over(&loopback), [&](int step) { return step + 2 == trained.steps; });
  EXPECT_EQ(expected.steps, trained.steps);
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(trained.sums[rank], expected.sums[0]) << rank;
  }
}

constexpr const char* kProviders[] = {"tcp;ofi_rxm"};

class FabricCluster : public ::testing::TestWithParam<const char*> {};

TEST_P(FabricCluster, GivesTheBitsThatLoopbackGives) {
  LoopbackNetwork loopback;
  FabricNetwork network(GetParam(), Over(&loopback));
  ExpectAsOverLoopback(Train(network.Factory(), [](int step) { return step == 10; }));
}

INSTANTIATE_TEST_SUITE_P(Providers, FabricCluster, ::testing::ValuesIn(kProviders),
                         [](const auto&) { return "Tcp"; });

// What the ends say of themselves is lost, repeated, damaged and reordered, and twice for so long
// that they take each other for gone.
class FabricChaos : public ::testing::TestWithParam<std::tuple<const char*, uint64_t>> {};

TEST_P(FabricChaos, CountsEveryPushOnce) {
  constexpr int kStorms = 2;
  constexpr int kLostInAStorm = 32;
  const auto [provider, seed] = GetParam();
  PumpedNetwork faulty;
  faulty.net().Randomize(seed, {.drop = 0.1, .duplicate = 0.1, .corrupt = 0.1, .reorder = true});
  FabricNetwork network(provider, faulty.Factory(), absl::Milliseconds(200));
  int storms = 0;
  bool has_weathered = false;
  uint64_t met = 0;
  const absl::Time deadline = absl::Now() + kLong;
  const Trained trained = Train(network.Factory(), [&](int) {
    if (absl::Now() > deadline) return true;
    if (network.num_meetings() < met + kServers) return false;
    has_weathered = storms == kStorms;
    if (has_weathered) return true;
    ++storms;
    met = network.num_meetings();
    faulty.net().Drop(OfType(FrameType::kTransport), kLostInAStorm);
    return false;
  });
  faulty.net().ClearFaults();
  EXPECT_TRUE(has_weathered);
  ExpectAsOverLoopback(trained);
}

INSTANTIATE_TEST_SUITE_P(Providers, FabricChaos,
                         ::testing::Combine(::testing::ValuesIn(kProviders),
                                            ::testing::Values(1, 2)),
                         [](const auto& info) {
                           return "Tcp" + std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace bdn::testing
