#ifndef BANDONEON_COMMON_BASE_EXECUTOR_H_
#define BANDONEON_COMMON_BASE_EXECUTOR_H_

#include <functional>
#include <memory>

namespace bdn {

// A place to run tasks on threads other than the caller's. Thread-safe.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` soon and exactly once, never inside this call. Tasks must not throw or block for
  // long.
  virtual void Post(std::function<void()> task) = 0;
};

// Makes a pool of `num_threads` threads that sleep while there is nothing to do; each task runs
// under a FloatGuard. The destructor waits for every task that was posted.
std::unique_ptr<Executor> MakePoolExecutor(int num_threads);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_EXECUTOR_H_
