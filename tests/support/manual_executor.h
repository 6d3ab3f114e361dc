#ifndef BANDONEON_TESTS_SUPPORT_MANUAL_EXECUTOR_H_
#define BANDONEON_TESTS_SUPPORT_MANUAL_EXECUTOR_H_

#include <cstddef>
#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "common/base/executor.h"
#include "common/base/mutex.h"

namespace bdn {

// An executor that runs tasks when its owner says so, on the owner's thread. Thread-safe.
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

#endif  // BANDONEON_TESTS_SUPPORT_MANUAL_EXECUTOR_H_
