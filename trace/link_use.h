#ifndef BANDONEON_TRACE_LINK_USE_H_
#define BANDONEON_TRACE_LINK_USE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "trace/job_trace.h"

namespace bdn {

// The traffic of the TCP connections from one node to another, over all samples in which they
// moved bytes, as the first node's kernel tells.
struct LinkUse {
  uint32_t node = 0;  // its index in JobTrace::nodes
  NodeId peer = 0;
  uint64_t wall_ns = 0;  // that the samples cover
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t bytes_sent_again = 0;
  uint64_t busy_ns = 0;       // bytes were on their way or waited to go out
  uint64_t held_back_ns = 0;  // of busy_ns: the peer had no room for more
  // Medians over samples: the bytes a second that the way carries, of samples in which it was given
  // that much, 0 without any; and the round trip.
  uint64_t rate = 0;
  uint64_t round_trip_ns = 0;
  uint64_t least_round_trip_ns = 0;  // 0: not known

  double Share(uint64_t ns) const {
    return wall_ns > 0 ? static_cast<double>(ns) / static_cast<double>(wall_ns) : 0;
  }
  // Bytes a second.
  double SendRate() const { return Share(bytes_sent) * 1e9; }
  double ReceiveRate() const { return Share(bytes_received) * 1e9; }
};

// Returns all links of a job's recordings, by node and then peer.
std::vector<LinkUse> LinksOf(const JobTrace& job);
// Returns the sentences to be said of links: which of them, or which peer, steps may wait for.
std::vector<std::string> LinkFindings(const JobTrace& job, const std::vector<LinkUse>& links);

}  // namespace bdn

#endif  // BANDONEON_TRACE_LINK_USE_H_
