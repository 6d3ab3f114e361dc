#include "server/shard_runner.h"

#include <latch>
#include <limits>

#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

constexpr Key kKey = Key::Of(1, 0);

TEST(ShardRunner, RunsWorkInOrderOnOneThreadAndSendsWhatItReturns) {
  std::vector<NodeId> sent;
  std::latch last(1);
  ShardRunner runner({.self = kServerNode}, [&](NodeId to, const Frame&) {
    sent.push_back(to);
    if (to == 3) last.count_down();
  });
  for (NodeId to = 1; to <= 3; ++to) {
    runner.Post([to](ServerShard&) { return Sends{{to, Frame{}}}; });
  }
  last.wait();
  EXPECT_EQ(sent, (std::vector<NodeId>{1, 2, 3}));
}

TEST(ShardRunner, RunsTheMostUrgentFirstAndWhatSaysNoPriorityBeforeThat) {
  std::vector<NodeId> sent;
  std::latch posted(1);
  std::latch last(1);
  ShardRunner runner({.self = kServerNode}, [&](NodeId to, const Frame&) {
    sent.push_back(to);
    if (to == 6) last.count_down();
  });
  runner.Post([&](ServerShard&) {
    posted.wait();
    return Sends();
  });
  const auto post = [&runner](NodeId to, int64_t priority) {
    runner.Post([to](ServerShard&) { return Sends{{to, Frame{}}}; }, priority);
  };
  post(4, -1);
  post(2, 3);
  post(6, std::numeric_limits<int32_t>::min());
  post(5, -1);
  post(3, 3);
  runner.Post([](ServerShard&) { return Sends{{1, Frame{}}}; });
  posted.count_down();
  last.wait();
  EXPECT_EQ(sent, (std::vector<NodeId>{1, 2, 3, 4, 5, 6}));
}

TEST(ShardRunner, ARoundGoesOutToEveryWorkerAndIsCounted) {
  std::latch replies(2);
  ShardRunner runner({.self = kServerNode}, [&](NodeId, const Frame& frame) {
    EXPECT_EQ(ValuesOf(frame), std::vector<float>(4, 2.0f));
    replies.count_down();
  });
  runner.Post([](ServerShard& shard) {
    shard.SetMembership(MakeMembership(2));
    shard.AddKey(MakePlan(kKey));
    return Sends();
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    const std::vector<float> values(4, 1.0f + 2.0f * static_cast<float>(rank));
    runner.Post([rank, push = MakePush(kKey, 1, rank, values)](ServerShard& shard) {
      return shard.OnFrame(WorkerNode(rank), push);
    });
  }
  replies.wait();
  EXPECT_EQ(runner.stats().pushes, 2u);  // as of the work whose replies these were
  EXPECT_EQ(runner.stats().rounds, 1u);
}

TEST(ShardRunner, WhatItSendsMayPostAgain) {
  std::latch again(1);
  ShardRunner* self = nullptr;
  ShardRunner runner({.self = kServerNode}, [&](NodeId to, const Frame&) {
    if (to == 1) {
      self->Post([](ServerShard&) { return Sends{{2, Frame{}}}; });
    } else {
      again.count_down();
    }
  });
  self = &runner;
  runner.Post([](ServerShard&) { return Sends{{1, Frame{}}}; });
  again.wait();
}

TEST(ShardRunner, EndsWithoutRunningWhatHasNotBegun) {
  std::latch begun(1);
  std::latch go_on(1);
  int runs = 0;
  {
    ShardRunner runner({.self = kServerNode}, [](NodeId, const Frame&) {});
    runner.Post([&](ServerShard&) {
      begun.count_down();
      go_on.wait();
      ++runs;
      return Sends();
    });
    begun.wait();
    go_on.count_down();
  }
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace bdn::testing
