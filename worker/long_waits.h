#ifndef BANDONEON_WORKER_LONG_WAITS_H_
#define BANDONEON_WORKER_LONG_WAITS_H_

#include <string>
#include <string_view>

#include "absl/time/time.h"

// What waits of a worker say in the log.

namespace bdn {

// How often they say what they wait for.
inline constexpr absl::Duration kReportInterval = absl::Seconds(30);

// What such a line says behind whom it waits for ("worker 1, worker 3", "server 0"): why the wait goes on
// where those are workers, and what to do about it; "" where it is a server.
std::string WhyTheWaitGoesOn(std::string_view waiting_for);

}  // namespace bdn

#endif  // BANDONEON_WORKER_LONG_WAITS_H_
