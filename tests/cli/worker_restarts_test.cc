#include "cli/worker_restarts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bdn::cli {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Clock::time_point At(int64_t second) { return Clock::time_point(seconds(second)); }

// Has a worker run for so long and end, and starts it when it is due. Returns the delay.
int64_t DelayAfter(WorkerRestarts* restarts, size_t process, int64_t running, int64_t* now) {
  *now += running;
  const int64_t delay = restarts->Plan(process, At(*now)).count();
  EXPECT_EQ(restarts->next(), At(*now + delay));
  EXPECT_THAT(restarts->TakeDue(At(*now + delay) - Clock::duration(1)), IsEmpty());
  *now += delay;
  EXPECT_THAT(restarts->TakeDue(At(*now)), ElementsAre(process));
  EXPECT_EQ(restarts->next(), std::nullopt);
  restarts->Started(process, At(*now));
  return delay;
}

TEST(WorkerRestarts, DelaysRiseToTheLongestAndBeginAnewAfterALongRun) {
  WorkerRestarts restarts;
  int64_t now = 1000;
  restarts.Started(3, At(now));
  for (const int64_t expected : {1, 2, 4, 8, 16, 30, 30}) {
    EXPECT_EQ(DelayAfter(&restarts, 3, 59, &now), expected);
  }
  EXPECT_EQ(DelayAfter(&restarts, 3, 60, &now), 1);
  EXPECT_EQ(DelayAfter(&restarts, 3, 0, &now), 2);
  EXPECT_EQ(restarts.count(3), 9);
}

TEST(WorkerRestarts, WorkersHaveDelaysOfTheirOwn) {
  WorkerRestarts restarts;
  int64_t now = 1000;
  restarts.Started(3, At(now));
  restarts.Started(4, At(now));
  EXPECT_EQ(DelayAfter(&restarts, 3, 1, &now), 1);
  EXPECT_EQ(restarts.Plan(3, At(now)).count(), 2);
  EXPECT_EQ(restarts.Plan(4, At(now)).count(), 1);
  EXPECT_EQ(restarts.next(), At(now + 1));
  EXPECT_THAT(restarts.TakeDue(At(now + 1)), ElementsAre(4));
  EXPECT_THAT(restarts.TakeAll(), ElementsAre(3));
  EXPECT_THAT(restarts.TakeAll(), IsEmpty());
  EXPECT_EQ(restarts.count(4), 0);
}

TEST(WorkerRestarts, ANewcomerIsOneThatWasStartedAgainUntilItIsTakenIn) {
  WorkerRestarts restarts;
  int64_t now = 1000;
  restarts.Started(3, At(now));
  EXPECT_FALSE(restarts.IsNewcomer(3));
  DelayAfter(&restarts, 3, 1, &now);
  EXPECT_THAT(restarts.newcomers(), ElementsAre(3));
  restarts.TakenIn(3);
  EXPECT_FALSE(restarts.IsNewcomer(3));
  DelayAfter(&restarts, 3, 1, &now);
  EXPECT_TRUE(restarts.IsNewcomer(3));
  restarts.Plan(3, At(now));
  EXPECT_FALSE(restarts.IsNewcomer(3));
}

}  // namespace
}  // namespace bdn::cli
