#include "common/base/executor.h"

#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <utility>

#include "common/base/float_guard.h"
#include "common/base/mutex.h"

namespace bdn {
namespace {

class PoolExecutor final : public Executor {
 public:
  explicit PoolExecutor(int num_threads)
      // No slot is reserved for a calling thread: callers never join the work.
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
  return std::make_unique<PoolExecutor>(num_threads);
}

}  // namespace bdn
