#include "tests/support/manual_clock.h"

#include <algorithm>

namespace bdn {

absl::Time ManualClock::Now() const {
  MutexLock lock(&mu_);
  return now_;
}

bool ManualClock::WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const {
  if (Now() >= deadline) return false;
  changed->WaitFor(mu, absl::Milliseconds(1));
  return Now() < deadline;
}

void ManualClock::Advance(absl::Duration by) {
  MutexLock lock(&mu_);
  now_ += std::max(by, absl::ZeroDuration());
}

}  // namespace bdn
