#ifndef BANDONEON_CLI_RATE_PROBE_H_
#define BANDONEON_CLI_RATE_PROBE_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/tcp_probe.h"

// A short exchange between two hosts by plain TCP, on one connection: what a job's data connections have to
// live on. Both ends show that they have the same token, and neither says it; what is exchanged is zeros.

namespace bdn::cli {

struct Rates {
  std::string address;   // of the other end
  double median_us = 0;  // of a round trip of 64 bytes
  double p99_us = 0;
  double sent_gbit = 0;  // a second, from here to there
  double received_gbit = 0;
};

// A socket that listens at `place`, whose port may be 0; `*port` is the one it has. The caller closes it.
absl::StatusOr<int> ListenTcp(const HostAndPort& place, int* port);
// Serves one peer at `listener`. Who has not shown the token within 10 s, is not done
// in a minute, or sends more than it may, is given up. DeadlineExceeded when
// none came in `timeout`; PermissionDenied of a peer with another token: the next may be served.
absl::StatusOr<Rates> ServeRates(int listener, const std::string& token,
                                 std::chrono::milliseconds timeout);
// Measures with who listens at `place`. It sends for `each_way`, and is sent
// to for 1 s. PermissionDenied where the tokens differ, InvalidArgument where that is no bandoneon doctor.
absl::StatusOr<Rates> MeasureRates(const HostAndPort& place, const std::string& token,
                                   std::chrono::milliseconds timeout,
                                   std::chrono::milliseconds each_way);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_RATE_PROBE_H_
