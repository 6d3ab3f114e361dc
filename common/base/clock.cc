#include "common/base/clock.h"

#include <algorithm>
#include <chrono>

namespace bdn {

absl::Time SteadyClock::Now() const {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

bool SteadyClock::WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const {
  return changed->WaitFor(mu, deadline - Now());
}

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
