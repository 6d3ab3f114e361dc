#ifndef BANDONEON_SERVER_KEY_SNAPSHOT_H_
#define BANDONEON_SERVER_KEY_SNAPSHOT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/buffer.h"
#include "server/dense_key.h"
#include "server/key_plan.h"

// A snapshot of all that a server holds of a dense key between two rounds, and that decides later
// rounds: a key that is set from it goes on with the same bits. A worker fetches one now and then,
// and keeps it for the day on which the server is lost. proto/wire_format.md has its layout.

namespace bdn {

// Returns whether rounds change anything of the key that later rounds depend on. A key without
// state needs no snapshots.
bool HasState(const KeyPlan& plan);
// Returns the most bytes of a snapshot.
uint64_t MaxSnapshotBytes(const KeyPlan& plan);

// Returns the snapshot of the key as its last closed round left it. An open round does not matter.
Buffer EncodeSnapshot(const KeyPlan& plan, const DenseState& state);
// Sets the key's state, whose round must not be open. InvalidArgument says what does not fit the
// key; then nothing has changed. `quality` as of ShardOptions.
absl::Status ApplySnapshot(const KeyPlan& plan, QualityWatch* quality, ByteSpan bytes,
                           DenseState* state);

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_SNAPSHOT_H_
