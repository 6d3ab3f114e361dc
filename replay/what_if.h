#ifndef BANDONEON_REPLAY_WHAT_IF_H_
#define BANDONEON_REPLAY_WHAT_IF_H_

#include "absl/status/statusor.h"
#include "replay/codec_costs.h"
#include "replay/replay_model.h"
#include "replay/replay_settings.h"

namespace bdn {

// Returns a model with other settings. `costs` has what the model took as recorded, and what was
// measured besides. Doubts about the prediction go to the model's warnings. NotFound where a
// codec's costs are not known; InvalidArgument where a setting does not fit the recorded job;
// Unimplemented where this recording is not enough to predict it.
absl::StatusOr<ReplayModel> WithSettings(ReplayModel model, const ReplaySettings& settings,
                                         const CodecCosts& costs);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_WHAT_IF_H_
