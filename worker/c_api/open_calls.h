#ifndef BANDONEON_WORKER_C_API_OPEN_CALLS_H_
#define BANDONEON_WORKER_C_API_OPEN_CALLS_H_

#include "common/base/mutex.h"

namespace bdn {

// A count of the calls in progress on a handle, so that bdn_free can wait for them. Thread-safe.
class OpenCalls {
 public:
  // Begins a call. Returns false after Close: then the caller may not go on, nor call Exit.
  bool Enter() {
    MutexLock lock(&mu_);
    if (is_closed_) return false;
    ++inside_;
    return true;
  }
  void Exit() {
    MutexLock lock(&mu_);
    if (--inside_ == 0) changed_.SignalAll();
  }
  void Close() {
    MutexLock lock(&mu_);
    is_closed_ = true;
  }
  // Waits until all calls that have begun are over.
  void AwaitNone() {
    MutexLock lock(&mu_);
    while (inside_ > 0) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_OPEN_CALLS_H_
