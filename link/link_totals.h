#ifndef BANDONEON_LINK_LINK_TOTALS_H_
#define BANDONEON_LINK_LINK_TOTALS_H_

#include <span>

#include "common/base/ids.h"
#include "common/telemetry/link_samples.h"
#include "common/transport/transport.h"

namespace bdn {

// Returns the totals of the connections to a node, but for those that stay within the machine.
LinkTotals TotalsOf(NodeId peer, std::span<const ConnectionId> connections,
                    const Transport& transport);

}  // namespace bdn

#endif  // BANDONEON_LINK_LINK_TOTALS_H_
