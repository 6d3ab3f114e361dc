#ifndef BANDONEON_TESTS_SUPPORT_MANUAL_CLOCK_H_
#define BANDONEON_TESTS_SUPPORT_MANUAL_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"

namespace bdn {

// A clock that a test moves by hand. A thread that waits notices an Advance within a millisecond.
// Thread-safe.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(absl::Time start = absl::UnixEpoch()) : now_(start) {}

  absl::Time Now() const override;
  bool WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // REQUIRES: by >= 0.
  void Advance(absl::Duration by);

 private:
  mutable Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_TESTS_SUPPORT_MANUAL_CLOCK_H_
