#ifndef BANDONEON_WORKER_HOST_CALL_THREADS_H_
#define BANDONEON_WORKER_HOST_CALL_THREADS_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace bdn {

// A pool of threads for calls that block: each call begins at once, on an idle thread or on a new
// one. Thread-safe.
class CallThreads {
 public:
  CallThreads() = default;
  ~CallThreads() { Join(); }
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  void Run(std::function<void()> call);
  // Waits for all calls. Calls given to Run from now on are dropped.
  void Join();

 private:
  void Serve();

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_CALL_THREADS_H_
