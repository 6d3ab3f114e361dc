#include "worker/pipeline/stage_queue.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/support/manual_executor.h"

namespace bdn {
namespace {

enum : size_t { kFirst, kSecond, kLanes };

struct Order {
  int priority = 0;
  Step step = 1;
  uint64_t key = 0;
  size_t bytes = 0;
};

// Tasks write their names in the order in which they run.
class StageQueueTest : public ::testing::Test {
 protected:
  static constexpr StageQueue::Lane kUnbounded[kLanes] = {};
  static constexpr StageQueue::Lane kBounded[kLanes] = {{.max_bytes = 100}, {}};

  void Push(StageQueue* queue, size_t lane, const std::string& name, const Order& order = {}) {
    queue->Push({.lane = lane,
                 .urgency = {order.priority, order.step, Key{order.key}},
                 .bytes = order.bytes,
                 .run = [this, name] { ran_ += name; }});
  }

  ManualExecutor executor_;
  std::string ran_;
};

TEST_F(StageQueueTest, RunsTheHighestPriorityThenTheEarliestStepThenTheLowestKey) {
  StageQueue queue(&executor_, kUnbounded);
  Push(&queue, kFirst, "d", {.priority = 1, .step = 2, .key = 1});
  Push(&queue, kFirst, "b", {.priority = 1, .step = 1, .key = 7});
  Push(&queue, kFirst, "e", {.priority = 0, .step = 1, .key = 0});
  Push(&queue, kFirst, "c", {.priority = 1, .step = 1, .key = 8});
  Push(&queue, kFirst, "a", {.priority = 2, .step = 9, .key = 9});
  EXPECT_EQ(executor_.RunAll(), 5u);
  EXPECT_EQ(ran_, "abcde");
}

TEST_F(StageQueueTest, ComparesLanesByTheSameOrder) {
  StageQueue queue(&executor_, kUnbounded);
  Push(&queue, kSecond, "b", {.priority = 1});
  Push(&queue, kFirst, "a", {.priority = 2});
  Push(&queue, kSecond, "c", {.priority = 0});
  executor_.RunAll();
  EXPECT_EQ(ran_, "abc");
}

TEST_F(StageQueueTest, PrefersTheLaterLaneOfEquals) {
  StageQueue queue(&executor_, kUnbounded);
  Push(&queue, kFirst, "b");
  Push(&queue, kSecond, "a");
  executor_.RunAll();
  EXPECT_EQ(ran_, "ab");
}

TEST_F(StageQueueTest, HoldsALaneBackThatIsOverItsBudgetUntilBytesAreReleased) {
  StageQueue queue(&executor_, kBounded);
  Push(&queue, kFirst, "a", {.key = 1, .bytes = 60});
  Push(&queue, kFirst, "b", {.key = 2, .bytes = 60});
  executor_.RunAll();
  EXPECT_EQ(ran_, "a");
  queue.Release(kFirst, 60);
  executor_.RunAll();
  EXPECT_EQ(ran_, "ab");
}

TEST_F(StageQueueTest, RunsATaskThatIsLargerThanTheWholeBudgetAlone) {
  StageQueue queue(&executor_, kBounded);
  Push(&queue, kFirst, "a", {.key = 1, .bytes = 1000});
  Push(&queue, kFirst, "b", {.key = 2, .bytes = 1});
  executor_.RunAll();
  EXPECT_EQ(ran_, "a");
  queue.Release(kFirst, 1000);
  executor_.RunAll();
  EXPECT_EQ(ran_, "ab");
}

TEST_F(StageQueueTest, ALaneThatIsHeldBackDoesNotHoldBackTheOthers) {
  StageQueue queue(&executor_, kBounded);
  Push(&queue, kFirst, "a", {.priority = 9, .bytes = 100});
  Push(&queue, kFirst, "c", {.priority = 9, .bytes = 100});
  Push(&queue, kSecond, "b", {.priority = 0});
  executor_.RunAll();
  EXPECT_EQ(ran_, "ab");
  queue.Release(kFirst, 100);
  executor_.RunAll();
  EXPECT_EQ(ran_, "abc");
}

TEST_F(StageQueueTest, GivesBackEveryTurnThatFoundNoWork) {
  StageQueue queue(&executor_, kBounded);
  for (uint64_t key = 0; key < 4; ++key) {
    Push(&queue, kFirst, std::to_string(key), {.key = key, .bytes = 50});
  }
  executor_.RunAll();
  EXPECT_EQ(ran_, "01");
  queue.Release(kFirst, 50);
  queue.Release(kFirst, 50);
  executor_.RunAll();
  EXPECT_EQ(ran_, "0123");
}

}  // namespace
}  // namespace bdn
