#include "common/base/executor.h"

#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/float_guard.h"
#include "common/base/mutex.h"
#include "common/base/thread.h"

namespace bdn {
namespace {

class PoolExecutor final : public Executor {
 public:
  explicit PoolExecutor(int num_threads) {
    for (int i = 0; i < num_threads; ++i) {
      threads_.push_back(StartThread("bdn-pool", [this] { Run(); }));
    }
  }

  ~PoolExecutor() override {
    {
      MutexLock lock(&mu_);
      closing_ = true;
    }
    wake_.SignalAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Post(std::function<void()> task) override {
    {
      MutexLock lock(&mu_);
      waiting_.push_back(std::move(task));
    }
    wake_.Signal();  // needs no system call where no thread sleeps
  }

 private:
  // A task that a running task posts after the pool began to close is run, if by no other thread,
  // by that of the running task: a thread ends only when it finds the queue empty.
  void Run() {
    while (const std::function<void()> task = TakeTask()) {
      const FloatGuard guard;
      task();
    }
  }

  // Waits for a task; returns null once the pool closes and no task waits.
  std::function<void()> TakeTask() {
    MutexLock lock(&mu_);
    while (waiting_.empty() && !closing_) wake_.Wait(&mu_);
    if (waiting_.empty()) return nullptr;
    std::function<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    return task;
  }

  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Executor> MakePoolExecutor(int num_threads) {
  return std::make_unique<PoolExecutor>(num_threads);
}

}  // namespace bdn
