#include "tests/support/manual_executor.h"

#include <utility>

#include "common/base/float_guard.h"

namespace bdn {

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

}  // namespace bdn
