// The cost of a frame does not grow with the number of workers, whatever its kind and wherever it
// is handled. It is counted in bytes that are allocated: this program's operators new add them up.

#include <cstddef>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/shard_context.h"
#include "tests/support/allocated_bytes.h"
#include "tests/support/simulated_job.h"

namespace bdn::testing {
namespace {

constexpr int kServers = 5;
constexpr absl::Duration kProbeInterval = absl::Seconds(1);

struct Cost {
  double bytes = 0;
  double frames = 0;
};
using Costs = std::map<std::pair<SimulatedSide, std::string>, Cost>;

std::vector<int> Keys(int begin) {
  std::vector<int> keys(kServers);
  std::iota(keys.begin(), keys.end(), begin);
  return keys;
}

// A step of one key of each server, half of whose workers push late and are asked for, and two
// broadcasts of another.
Costs RunJob(int workers) {
  Costs costs;
  const auto count = [&costs](SimulatedSide side, const char* kind,
                              const SimulatedJob::Work& work) {
    Cost& cost = costs[{side, kind}];
    const size_t before = AllocatedBytes();
    const size_t frames = work();
    cost.bytes += static_cast<double>(AllocatedBytes() - before);
    cost.frames += static_cast<double>(frames);
  };
  SimulatedJob job({.workers = workers,
                    .servers = kServers,
                    .dense_keys = kServers,
                    .broadcast_keys = kServers,
                    .probe_interval = kProbeInterval},
                   count);
  const std::vector<int> dense = Keys(0);
  const std::vector<int> broadcast = Keys(kServers);
  for (int worker = 1; worker < workers; worker += 2) job.Push(worker, dense, 1);
  job.Deliver();
  job.Advance(kProbeInterval);
  job.Deliver();
  for (int worker = 0; worker < workers; worker += 2) job.Push(worker, dense, 1);
  job.Deliver();
  for (Step step = 1; step <= 2; ++step) {
    job.Init(0, broadcast, step);
    for (int worker = 1; worker < workers; ++worker) job.Fetch(worker, broadcast, step);
    job.Deliver();
  }
  const auto pushes = static_cast<uint64_t>(workers * kServers);
  EXPECT_EQ(job.server_stats().pushes, pushes);
  EXPECT_EQ(job.server_stats().rounds, static_cast<uint64_t>(kServers));
  EXPECT_EQ(job.results(), 3 * pushes);
  // The mean of the ranks + 1, and of each broadcast's worker but its root its step.
  EXPECT_EQ(job.first_elements(), pushes * (workers + 1) / 2.0 + (1 + 2) * (pushes - kServers));
  const auto probes = static_cast<uint64_t>(workers / 2 * kServers);
  EXPECT_EQ(job.server_stats().probes, probes);
  EXPECT_EQ(job.sent(FrameType::kWaiting).frames, probes);
  EXPECT_LE(job.sent(FrameType::kWaiting).bytes,
            probes * (kHeaderBytes + sizeof(uint32_t) + (kMostRanksTold + 1) * sizeof(Rank)));
  return costs;
}

TEST(FrameScale, NoFrameCostsMoreWhereThereAreMoreWorkers) {
  Costs few = RunJob(150);
  const Costs many = RunJob(1500);
  EXPECT_GE(many.size(), 15u);
  for (const auto& [what, cost] : many) {
    const Cost& before = few[what];
    ASSERT_GT(before.frames, 0) << what.second;
    EXPECT_LE(cost.bytes / cost.frames, 1.25 * before.bytes / before.frames + 16)
        << what.second << " at " << (what.first == SimulatedSide::kServer ? "a server" : "others");
  }
}

}  // namespace
}  // namespace bdn::testing
