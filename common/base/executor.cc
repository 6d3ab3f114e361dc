#include "common/base/executor.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <utility>

#include "common/base/float_guard.h"
#include "common/base/mutex.h"

namespace bdn {
namespace {

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
      ++pending_;
    }
    arena_.enqueue(Item{this, std::move(task)});
  }

 private:
  // What TBB is handed: it calls a const object.
  struct Item {
    PoolExecutor* pool;
    mutable std::function<void()> task;

    void operator()() const {
      {
        const FloatGuard guard;
        task();
        task = nullptr;  // what it holds must be gone before it counts as done
      }
      MutexLock lock(&pool->mu_);
      if (--pool->pending_ == 0) pool->idle_.SignalAll();
    }
  };

  tbb::task_arena arena_;
  Mutex mu_;
  CondVar idle_;
  int pending_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

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
