#ifndef BANDONEON_CLI_RATE_PROBE_H_
#define BANDONEON_CLI_RATE_PROBE_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/peer_queue.h"
#include "cli/tcp_probe.h"

// A measurement between two machines over one plain TCP connection, such as a job's data
// connections are. Both ends show that they have the same token, and neither says it; the bytes
// that are measured are zeros.

namespace bdn::cli {

// The result of a measurement.
struct Rates {
  std::string address;   // of the other end
  double median_us = 0;  // of a round trip of 64 bytes
  double p99_us = 0;
  double sent_gbit = 0;  // a second, from here to there
  double received_gbit = 0;
};

// Returns a non-blocking socket that listens at `place`, whose port may be 0; `*port` is the one
// that it has. The caller closes it.
absl::StatusOr<int> ListenTcp(const HostAndPort& place, int* port);
// Serves the next of `peers`, and tends the others meanwhile. A peer that is not done in a minute,
// stands still for 10 s, or sends more than it may, is given up. DeadlineExceeded when none came
// within `timeout`; after any other error the next may be served.
absl::StatusOr<Rates> ServeRates(PeerQueue* peers, std::chrono::milliseconds timeout);
// Measures with the listener at `place`: sends to it for `each_way`, and receives from it for 1 s.
// `on_waiting` is called with the number of peers that are measured before, each time that it has
// fallen. PermissionDenied where the tokens differ, InvalidArgument where no bandoneon doctor
// listens there, ResourceExhausted where too many wait there.
absl::StatusOr<Rates> MeasureRates(const HostAndPort& place, const std::string& token,
                                   std::chrono::milliseconds timeout,
                                   std::chrono::milliseconds each_way,
                                   const std::function<void(size_t before)>& on_waiting);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_RATE_PROBE_H_
