#ifndef BANDONEON_REPLAY_RECUT_KEYS_H_
#define BANDONEON_REPLAY_RECUT_KEYS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "replay/codec_costs.h"
#include "replay/replay_model.h"

namespace bdn {

// Divides the tensors of a job into keys anew, by the scheduler's rule with these settings, and
// places the keys. A group of tensors that shares a key is one tensor here, because a recording
// does not say what is in it. Unimplemented where that would have to be known, and where a program
// waits for one of two tensors before it pushes the other one, which are to share a key. After an
// error the model is unspecified.
absl::Status RecutKeys(uint64_t partition_bytes, uint64_t fusion_bytes, const CodecCosts& costs,
                       ReplayModel* model);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_RECUT_KEYS_H_
