#include <cmath>
#include <random>
#include <thread>

#include "common/transport/scripted_loopback.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/worker_rig.h"

// Whole workers and servers over a network that loses, repeats, damages and reorders frames.

namespace bdn::testing {
namespace {

using Floats = std::vector<float>;
constexpr absl::Duration kLong = absl::Minutes(1);
constexpr size_t kElements = 3000;  // three partitions

Floats Normal(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// A scripted network with a thread that keeps it going.
class PumpedNetwork {
 public:
  PumpedNetwork() : pump_([this] { while (net_.WaitAndStep()) continue; }) {}
  ~PumpedNetwork() {
    net_.Interrupt();
    pump_.join();
  }
  ScriptedLoopback& net() { return net_; }
  LocalCluster::TransportFactory Factory() {
    return [this] { return net_.MakeTransport(); };
  }

 private:
  ScriptedLoopback net_;
  std::thread pump_;
};

Worker::Options Impatient() {
  Worker::Options options;
  options.probe_interval = absl::Milliseconds(3);
  return options;
}

// What three workers have after `steps` of training-like exchanges.
std::vector<Floats> Train(LocalCluster::TransportFactory factory, int steps) {
  std::vector<Floats> sums(3, Floats(kElements, 0.0f));
  ClusterRig rig(3, {"--servers=2", "--min-compress-bytes=0", "--partition-bytes=4096"}, Impatient(),
                 std::move(factory));
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = worker.Declare({Tensor("w", kElements, "ef(onebit)", "ef(topk(ratio=0.1))")}, kLong);
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

INSTANTIATE_TEST_SUITE_P(Seeds, FaultyNetwork, ::testing::Values(1, 2, 3, 4, 5));

}  // namespace
}  // namespace bdn::testing
