#include "link/link_totals.h"

#include <algorithm>

namespace bdn {
namespace {

void Raise(absl::Duration duration, uint64_t* ns) {
  *ns = std::max(*ns, static_cast<uint64_t>(absl::ToInt64Nanoseconds(duration)));
}

}  // namespace

LinkTotals TotalsOf(NodeId peer, std::span<const ConnectionId> connections,
                    const Transport& transport) {
  LinkTotals totals = {.peer = peer};
  for (const ConnectionId connection : connections) {
    const ConnectionFacts facts = transport.FactsOf(connection);
    if (!facts.is_network) continue;
    totals.bytes_sent += facts.bytes_sent;
    totals.bytes_received += facts.bytes_received;
    totals.bytes_sent_again += facts.bytes_sent_again;
    totals.rate += facts.rate;
    Raise(facts.busy, &totals.busy_ns);
    Raise(facts.held_back, &totals.held_back_ns);
    Raise(facts.round_trip_now, &totals.round_trip_ns);
    Raise(facts.round_trip, &totals.least_round_trip_ns);
  }
  return totals;
}

}  // namespace bdn
