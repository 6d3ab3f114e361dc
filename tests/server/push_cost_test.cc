// The cost of a push does not grow with the number of workers. It is counted in bytes that are
// allocated: this program's operators new add them up.

#include <cstddef>

#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"
#include "tests/support/allocated_bytes.h"

namespace bdn::testing {
namespace {

using PushCostTest = ShardFixture;

TEST_F(PushCostTest, DoesNotGrowWithTheRoster) {
  const KeyOptions options{.segments = {100}};
  const Floats values(100, 1.0f);
  std::vector<size_t> in_order;
  std::vector<size_t> out_of_order;
  for (const int workers : {64, 4096}) {
    Start(workers, options);
    std::vector<Frame> pushes;
    for (Rank rank = 0; rank < 48; ++rank) {
      pushes.push_back(MakePush(kKey, 1, rank, values, options));
    }
    const auto cost = [&](Rank begin, Rank end) {
      const size_t before = AllocatedBytes();
      for (Rank rank = begin; rank < end; ++rank) {
        EXPECT_TRUE(shard_.OnFrame(WorkerNode(rank), pushes[rank]).empty());
      }
      return AllocatedBytes() - before;
    };
    cost(0, 8);
    in_order.push_back(cost(8, 16));
    out_of_order.push_back(cost(32, 40));
  }
  EXPECT_GT(in_order[0], 0u);
  EXPECT_EQ(in_order[0], in_order[1]);
  EXPECT_EQ(out_of_order[0], out_of_order[1]);
}

}  // namespace
}  // namespace bdn::testing
