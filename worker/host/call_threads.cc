#include "worker/host/call_threads.h"

#include <utility>

#include "common/base/float_guard.h"
#include "common/base/thread.h"

namespace bdn {

void CallThreads::Run(std::function<void()> call) {
  MutexLock lock(&mu_);
  if (is_over_) return;
  waiting_.push_back(std::move(call));
  // `waiting_` has this call and those for which an idle thread was signalled but has not come yet.
  // With fewer idle threads than calls, one more is needed: a call must never wait for another,
  // which may wait for it.
  if (idle_ >= waiting_.size()) {
    changed_.Signal();
  } else {
    threads_.push_back(StartThread("bdn-call", [this] { Serve(); }));
  }
}

void CallThreads::Serve() {
  const FloatGuard guard;
  for (;;) {
    std::function<void()> call;
    {
      MutexLock lock(&mu_);
      ++idle_;
      while (waiting_.empty() && !is_over_) changed_.Wait(&mu_);
      --idle_;
      // Calls that were queued before Join are still made.
      if (waiting_.empty()) return;
      call = std::move(waiting_.front());
      waiting_.pop_front();
    }
    call();
  }
}

void CallThreads::Join() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mu_);
    is_over_ = true;
    changed_.SignalAll();
    // Joined without the lock, which the threads need to end.
    threads = std::move(threads_);
    threads_.clear();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace bdn
