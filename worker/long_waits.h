#ifndef BANDONEON_WORKER_LONG_WAITS_H_
#define BANDONEON_WORKER_LONG_WAITS_H_

#include <string>
#include <string_view>

#include "absl/time/time.h"

// The log lines of a worker's long waits.

namespace bdn {

// The time between two lines that say what a wait waits for.
inline constexpr absl::Duration kReportInterval = absl::Seconds(30);

// Returns the end of such a line: why the wait goes on if it waits for workers, and what to do
// about it. `waiting_for` is as in "worker 1, worker 3" or "server 0"; for a server the result is
// "".
std::string WhyTheWaitGoesOn(std::string_view waiting_for);

}  // namespace bdn

#endif  // BANDONEON_WORKER_LONG_WAITS_H_
