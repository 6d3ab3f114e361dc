// What a push costs does not grow with the number of workers. Counted in bytes that it allocates:
// this program's operators new add them up.

#include <cstddef>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "tests/server/shard_fixture.h"

namespace {

size_t bytes_allocated = 0;

void* Allocate(size_t size, size_t alignment) {
  bytes_allocated += size;
  void* block = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (block == nullptr) std::abort();
  return block;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
// Said, too, for a sanitizer has its own.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }

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
      const size_t before = bytes_allocated;
      for (Rank rank = begin; rank < end; ++rank) {
        EXPECT_TRUE(shard_.OnFrame(WorkerNode(rank), pushes[rank]).empty());
      }
      return bytes_allocated - before;
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
