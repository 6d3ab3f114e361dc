#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/shard.h"
#include "tests/compressors/allocation_count.h"
#include "tests/support/shard_rig.h"

// The cost of one more worker for a server's rounds, counted by allocations and frames, not by
// time.

namespace bdn::testing {
namespace {

constexpr Key kKey = Key::Of(0, 0);
constexpr NodeId kFarServer = 100000;  // beyond all workers
constexpr int kSteps = 3;

std::shared_ptr<const Membership> Workers(int count) {
  auto membership = std::make_shared<Membership>();
  membership->epoch = 1;
  for (Rank rank = 0; rank < count; ++rank) {
    membership->workers.push_back({.id = WorkerNode(rank), .role = Role::kWorker, .rank = rank});
  }
  membership->servers.push_back({.id = kFarServer, .role = Role::kServer});
  membership->MakeIndex();
  return membership;
}

struct Cost {
  double allocations = 0;
  double frames = 0;
};

// Of some steps in which all workers push in turn. Making the pushes is the workers' cost.
Cost RunRounds(int workers) {
  ServerShard shard({.self = kFarServer});
  shard.SetMembership(Workers(workers));
  shard.AddKey(MakePlan(kKey));
  shard.SetCatalogueVersion(1);
  Cost cost;
  for (Step step = 1; step <= kSteps; ++step) {
    std::vector<Frame> pushes;
    for (Rank rank = 0; rank < workers; ++rank) {
      pushes.push_back(MakePush(kKey, step, rank, {1, 2, 3, 4}));
    }
    const size_t before = AllocationCount();
    for (const Frame& push : pushes) {
      cost.frames += static_cast<double>(shard.OnFrame(push.header.sender, push).size());
    }
    cost.allocations += static_cast<double>(AllocationCount() - before);
  }
  EXPECT_EQ(shard.stats().rounds, static_cast<uint64_t>(kSteps));
  return cost;
}

TEST(RoundScale, TenTimesTheWorkersCostTenTimesAsMuch) {
  Cost before = RunRounds(10);
  for (const int workers : {100, 1000}) {
    const Cost now = RunRounds(workers);
    EXPECT_LE(now.allocations, before.allocations * 10 * 1.25 + 200) << workers << " workers";
    EXPECT_EQ(now.frames, before.frames * 10);
    before = now;
  }
}

}  // namespace
}  // namespace bdn::testing
