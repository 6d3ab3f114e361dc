#ifndef BANDONEON_SERVER_HELD_BY_KEY_H_
#define BANDONEON_SERVER_HELD_BY_KEY_H_

#include "common/cluster/held_bytes.h"
#include "server/key_state.h"

namespace bdn {

// Returns the bytes that a server holds for a key. Costs the same whatever the key's size and the
// number of workers.
HeldBytes HeldBy(const KeyState& state);

}  // namespace bdn

#endif  // BANDONEON_SERVER_HELD_BY_KEY_H_
