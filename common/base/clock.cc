#include "common/base/clock.h"

#include <chrono>

namespace bdn {

absl::Time SteadyClock::Now() const {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

bool SteadyClock::WaitUntil(CondVar* changed, Mutex* mu, absl::Time deadline) const {
  return changed->WaitFor(mu, deadline - Now());
}

}  // namespace bdn
