#ifndef BANDONEON_SCHEDULER_SLOT_MOVER_H_
#define BANDONEON_SCHEDULER_SLOT_MOVER_H_

#include <cstdint>
#include <map>

#include "common/cluster/membership.h"

namespace bdn {

// The bytes of the keys that are placed on each home.
using HomeBytes = std::map<NodeId, uint64_t>;

// Moves all slots for which `lost` answers, its own and those that had moved to it, to the servers
// of the membership, since its epoch. Each goes to the server with the fewest bytes, a slot
// counting for a sixteenth of its home's; among equals to that with the fewest slots, then to the
// lower rank. Where there is no server, nobody answers for them. Deterministic.
// REQUIRES: the epoch is that without `lost`, which is not among the servers; `homes` has every
// home.
void MoveSlots(NodeId lost, const HomeBytes& homes, Membership* membership);

// Gives the newcomer all slots for which `lost` answers, likewise.
void GiveSlots(NodeId lost, NodeId newcomer, const HomeBytes& homes, Membership* membership);

// Gives the newcomer all slots for which nobody answers.
void GiveFreeSlots(NodeId newcomer, Membership* membership);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SLOT_MOVER_H_
