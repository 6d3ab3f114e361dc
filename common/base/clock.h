#ifndef BANDONEON_COMMON_BASE_CLOCK_H_
#define BANDONEON_COMMON_BASE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace bdn {

// A source of the time by which deadlines, leases and retries go. Its time never goes back, and
// does not follow when somebody sets the system's clock. Its zero is arbitrary: times compare
// within one process only. main() makes one and hands it down. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  virtual absl::Time Now() const = 0;
  // Waits on `changed` until it is signalled or `deadline` comes; returns false when the deadline
  // came. May wake without cause, as CondVar does.
  virtual bool WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;
};

// The clock of production: std::chrono::steady_clock. Thread-safe.
class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override;
  bool WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_CLOCK_H_
