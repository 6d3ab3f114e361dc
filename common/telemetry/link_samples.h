#ifndef BANDONEON_COMMON_TELEMETRY_LINK_SAMPLES_H_
#define BANDONEON_COMMON_TELEMETRY_LINK_SAMPLES_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/ids.h"
#include "common/telemetry/trace_layout.h"

namespace bdn {

// The totals of all connections to one node since they were made, and their present state.
struct LinkTotals {
  NodeId peer = 0;
  uint64_t bytes_sent = 0;  // that the peer has acknowledged
  uint64_t bytes_received = 0;
  uint64_t bytes_sent_again = 0;
  // The largest values among the connections: the time in which bytes were on their way or waited
  // to go out, the part of it in which the peer had no room, and the round trip, now and at its
  // least.
  uint64_t busy_ns = 0;
  uint64_t held_back_ns = 0;
  uint64_t round_trip_ns = 0;
  uint64_t least_round_trip_ns = 0;
  uint64_t rate = 0;  // bytes a second that the way carries; 0 where the sender gave it less
};

// Turns totals of links into the records of the time between two calls. Not thread-safe.
class LinkSamples {
 public:
  // A server of a thousand workers records those links that moved most.
  static constexpr size_t kMostPeers = 64;

  // Returns two records for each of at most kMostPeers peers with which bytes were moved since the
  // last call (docs/trace_format.md). The first call has none. A peer that was not in the last one
  // has moved all of its totals since.
  std::vector<TraceRecord> Take(int64_t now_ns, const std::vector<LinkTotals>& links);

 private:
  absl::flat_hash_map<NodeId, LinkTotals> before_;
  bool has_begun_ = false;
  int64_t at_ns_ = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_LINK_SAMPLES_H_
