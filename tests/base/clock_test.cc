#include "common/base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/manual_clock.h"

namespace bdn {
namespace {

TEST(SteadyClock, NeverGoesBack) {
  const SteadyClock clock;
  absl::Time last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SteadyClock, AWaitEndsAtItsDeadlineAndNotBefore) {
  const SteadyClock clock;
  Mutex mu;
  CondVar never;
  MutexLock lock(&mu);
  const absl::Time deadline = clock.Now() + absl::Milliseconds(5);
  while (clock.WaitUntil(&never, &mu, deadline)) continue;
  EXPECT_GE(clock.Now(), deadline);
}

TEST(SteadyClock, ADeadlineThatHasPassedEndsTheWaitAtOnce) {
  const SteadyClock clock;
  Mutex mu;
  CondVar never;
  MutexLock lock(&mu);
  EXPECT_FALSE(clock.WaitUntil(&never, &mu, absl::InfinitePast()));
}

TEST(ManualClock, StandsUntilItIsMoved) {
  ManualClock clock(absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(105));
}

TEST(ManualClock, AnAdvanceEndsAWaitOfAnotherThread) {
  ManualClock clock;
  const absl::Time deadline = clock.Now() + absl::Hours(1);
  Mutex mu;
  CondVar never;
  std::thread waiter([&] {
    MutexLock lock(&mu);
    while (clock.WaitUntil(&never, &mu, deadline)) continue;
  });
  clock.Advance(absl::Hours(1));
  waiter.join();
  EXPECT_EQ(clock.Now(), deadline);
}

}  // namespace
}  // namespace bdn
