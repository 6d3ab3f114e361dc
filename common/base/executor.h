#ifndef BANDONEON_COMMON_BASE_EXECUTOR_H_
#define BANDONEON_COMMON_BASE_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"

namespace bdn {

// Runs tasks on threads of its own. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` soon and exactly once, never inside this call. Tasks must not throw or block for
  // long.
  virtual void Post(std::function<void()> task) = 0;
};

// A pool of `num_threads` threads that sleep while there is nothing to do; each task runs under a
// FloatGuard. The destructor waits for every task that was posted.
std::unique_ptr<Executor> MakePoolExecutor(int num_threads);

// Runs tasks when its owner says so, on the owner's thread: for tests. Thread-safe.
class ManualExecutor final : public Executor {
 public:
  void Post(std::function<void()> task) override;
  // Runs the oldest task; false when there was none.
  bool RunOne();
  // Runs until nothing is left, what the tasks post included; returns how many ran.
  size_t RunAll();
  size_t num_waiting() const;

 private:
  mutable Mutex mu_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_EXECUTOR_H_
