#ifndef BANDONEON_COMMON_BASE_MUTEX_H_
#define BANDONEON_COMMON_BASE_MUTEX_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace bdn {

// A std::mutex with clang's thread-safety annotations. It is not absl::Mutex because the thread
// sanitizer does not know Debian's build of that.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  // Takes the lock if it is free. Must not be called by the thread that holds it.
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.try_lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

// A scope that holds a Mutex.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// A condition variable for Mutex. Wake-ups may be spurious: wait in a loop over the condition.
// Thread-safe.
class CondVar {
 public:
  void Wait(Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Waits for `most` at the longest, by the steady clock; returns false when that has passed.
  bool WaitFor(Mutex* mu, absl::Duration most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (most == absl::InfiniteDuration()) {
      Wait(mu);
      return true;
    }
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const absl::Duration kAYear = absl::Hours(24 * 365);  // so that the sum does not overflow
    const auto outcome = cv_.wait_until(
        lock, std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(most, kAYear)));
    lock.release();
    return outcome == std::cv_status::no_timeout;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_MUTEX_H_
