#include "common/base/executor.h"

#include <pthread.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include <deque>
#include <utility>

#include "common/base/float_guard.h"
#include "common/base/mutex.h"

namespace bdn {
namespace {

// TBB orders a turn after the call that enqueued it. Debian's build of it is not instrumented, so
// the thread sanitizer has to be told: what comes before TellSanitizerPosted of a pool comes before
// what follows a later TellSanitizerTaken of it.
#if defined(__SANITIZE_THREAD__)
void TellSanitizerPosted(void* pool) { __tsan_release(pool); }
void TellSanitizerTaken(void* pool) { __tsan_acquire(pool); }
#else
void TellSanitizerPosted(void*) {}
void TellSanitizerTaken(void*) {}
#endif

// At a thread's first turn: TBB makes them. Its observers, which could do it, leak when they go.
void NameThread() {
  [[maybe_unused]] thread_local const int named = pthread_setname_np(pthread_self(), "bdn-pool");
}

// The tasks wait in a queue of ours, and TBB is handed turns: what a turn holds is then a pointer,
// and all that the sanitizer cannot follow.
class PoolExecutor final : public Executor {
 public:
  explicit PoolExecutor(int num_threads)
      // No slot of the arena is reserved for a calling thread: callers never join the work.
      : arena_(num_threads, /*reserved_for_masters=*/0) {
    arena_.initialize();
  }

  ~PoolExecutor() override {
    MutexLock lock(&mu_);
    while (pending_ > 0) idle_.Wait(&mu_);
  }

  void Post(std::function<void()> task) override {
    {
      MutexLock lock(&mu_);
      waiting_.push_back(std::move(task));
      ++pending_;
    }
    TellSanitizerPosted(this);
    arena_.enqueue(Turn{this});
  }

 private:
  struct Turn {
    PoolExecutor* pool;
    void operator()() const {
      NameThread();
      TellSanitizerTaken(pool);
      pool->RunOne();
    }
  };

  void RunOne() {
    {
      const FloatGuard guard;
      TakeTask()();  // what the task holds must be gone before it counts as done
    }
    MutexLock lock(&mu_);
    if (--pending_ == 0) idle_.SignalAll();
  }

  std::function<void()> TakeTask() {
    MutexLock lock(&mu_);
    std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    return task;
  }

  tbb::task_arena arena_;
  Mutex mu_;
  CondVar idle_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  int pending_ ABSL_GUARDED_BY(mu_) = 0;  // waiting and running
};

}  // namespace

void ManualExecutor::Post(std::function<void()> task) {
  MutexLock lock(&mu_);
  waiting_.push_back(std::move(task));
}

bool ManualExecutor::RunOne() {
  std::function<void()> task;
  {
    MutexLock lock(&mu_);
    if (waiting_.empty()) return false;
    task = std::move(waiting_.front());
    waiting_.pop_front();
  }
  const FloatGuard guard;
  task();
  return true;
}

size_t ManualExecutor::RunAll() {
  size_t count = 0;
  while (RunOne()) ++count;
  return count;
}

size_t ManualExecutor::num_waiting() const {
  MutexLock lock(&mu_);
  return waiting_.size();
}

std::unique_ptr<Executor> MakePoolExecutor(int num_threads) {
  // Unless told otherwise TBB makes one thread fewer than there are processors, for all arenas
  // together; and of several limits the least holds. One for the process, then, that no pool meets:
  // threads are made only as the arenas ask for them.
  constexpr size_t kMostThreads = 1024;
  static const tbb::global_control control(tbb::global_control::max_allowed_parallelism,
                                           kMostThreads);
  return std::make_unique<PoolExecutor>(num_threads);
}

}  // namespace bdn
