#ifndef BANDONEON_COMMON_CLUSTER_PLACEMENT_H_
#define BANDONEON_COMMON_CLUSTER_PLACEMENT_H_

#include <span>

#include "common/base/ids.h"
#include "common/cluster/catalogue.h"

namespace bdn {

// Chooses the server of each of `fresh`, beside `placed`, which stay where they are: the largest
// first, each to the server with the fewest bytes of its kind; among servers that are nearly level,
// to one that does not hold the keys next to it. Deterministic. Pure.
// REQUIRES: `servers` is not empty; the servers of `placed` are among them.
void PlaceKeys(std::span<const NodeId> servers, std::span<const KeyEntry> placed,
               std::span<KeyEntry> fresh);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_PLACEMENT_H_
