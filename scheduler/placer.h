#ifndef BANDONEON_SCHEDULER_PLACER_H_
#define BANDONEON_SCHEDULER_PLACER_H_

#include "common/cluster/catalogue.h"
#include "common/cluster/membership.h"
#include "common/cluster/placement_table.h"

namespace bdn {

// Places every key of `catalogue` on the servers of `membership`. Keys that have an owner in
// `before` stay where they are. Of the others the largest comes first, and each goes to the server
// with the fewest bytes of its kind; among servers that are nearly level, to one that does not hold
// the keys next to it. Deterministic. Pure.
// REQUIRES: there are servers, and the owners in `before` are among them.
PlacementTable PlaceKeys(const Membership& membership, const Catalogue& catalogue,
                         const PlacementTable& before);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_PLACER_H_
