#include "common/base/executor.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <thread>

#include "common/base/thread.h"
#include "gtest/gtest.h"
#include "tests/support/manual_executor.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace bdn {
namespace {

std::string NameOfThisThread() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

TEST(Threads, AreCalledByWhatTheyDoAndTakeNoSignals) {
  std::string name;
  sigset_t blocked;
  StartThread("bdn-test", [&] {
    name = NameOfThisThread();
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  }).join();
  EXPECT_EQ(name, "bdn-test");
  EXPECT_TRUE(sigismember(&blocked, SIGINT));
  std::promise<std::string> of_pool;
  MakePoolExecutor(1)->Post([&] { of_pool.set_value(NameOfThisThread()); });
  EXPECT_EQ(of_pool.get_future().get(), "bdn-pool");
}

TEST(PoolExecutor, RunsEveryTaskOnceBeforeItGoes) {
  std::atomic<int> runs = 0;
  {
    const auto executor = MakePoolExecutor(2);
    for (int i = 0; i < 1000; ++i) executor->Post([&] { ++runs; });
  }
  EXPECT_EQ(runs, 1000);
}

TEST(PoolExecutor, RunsTasksThatTasksPost) {
  std::atomic<int> runs = 0;
  {
    const auto executor = MakePoolExecutor(2);
    std::latch posted(1);
    executor->Post([&] {
      for (int i = 0; i < 10; ++i) executor->Post([&] { ++runs; });
      posted.count_down();
    });
    posted.wait();
  }
  EXPECT_EQ(runs, 10);
}

TEST(PoolExecutor, NeverRunsATaskInsidePost) {
  const auto executor = MakePoolExecutor(1);
  std::latch done(1);
  std::thread::id ran_on;
  executor->Post([&] {
    ran_on = std::this_thread::get_id();
    done.count_down();
  });
  done.wait();
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(PoolExecutor, DropsWhatATaskHoldsBeforeItGoes) {
  const auto held = std::make_shared<int>(1);
  {
    const auto executor = MakePoolExecutor(2);
    for (int i = 0; i < 100; ++i) executor->Post([held] {});
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(PoolExecutor, RunsTwoTasksAtATime) {
  const auto executor = MakePoolExecutor(2);
  std::latch both(2);
  std::latch done(2);
  for (int i = 0; i < 2; ++i) {
    executor->Post([&] {
      both.arrive_and_wait();  // ends only when the other runs too
      done.count_down();
    });
  }
  done.wait();
}

TEST(PoolExecutor, DoesNotTakeAnothersThreads) {
  const auto small = MakePoolExecutor(1);
  const auto large = MakePoolExecutor(3);
  std::latch all(4);
  std::latch done(4);
  for (int i = 0; i < 4; ++i) {
    (i == 0 ? small : large)->Post([&] {
      all.arrive_and_wait();  // ends only when all four run
      done.count_down();
    });
  }
  done.wait();
}

#if defined(__x86_64__)
TEST(PoolExecutor, RunsTasksUnderTheDefaultFloatingPointState) {
  // The pool's threads inherit what their maker has set.
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);
  std::atomic<unsigned> seen = 0;
  {
    const auto executor = MakePoolExecutor(2);
    for (int i = 0; i < 20; ++i) executor->Post([&] { seen |= _mm_getcsr(); });
  }
  _mm_setcsr(saved);
  EXPECT_EQ(seen & 0xe040u, 0u);
}
#endif

TEST(ManualExecutor, RunsNothingUntilItIsTold) {
  ManualExecutor executor;
  int runs = 0;
  executor.Post([&] { ++runs; });
  executor.Post([&] { runs += 10; });
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(executor.num_waiting(), 2u);
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(executor.RunAll(), 1u);
  EXPECT_EQ(runs, 11);
  EXPECT_FALSE(executor.RunOne());
}

TEST(ManualExecutor, RunsWhatATaskPostsAfterTheTask) {
  ManualExecutor executor;
  std::string order;
  executor.Post([&] {
    executor.Post([&] { order += "posted"; });
    order += "task, ";
  });
  EXPECT_EQ(executor.RunAll(), 2u);
  EXPECT_EQ(order, "task, posted");
}

}  // namespace
}  // namespace bdn
