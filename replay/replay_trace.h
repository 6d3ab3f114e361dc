#ifndef BANDONEON_REPLAY_REPLAY_TRACE_H_
#define BANDONEON_REPLAY_REPLAY_TRACE_H_

#include "absl/status/statusor.h"
#include "replay/replay_model.h"
#include "replay/simulator.h"
#include "trace/job_trace.h"

namespace bdn {

// Returns a replay as if it had been recorded, so that it can be explained and drawn as recordings
// are. `job` is the recording that the model was made from. REQUIRES: the result has all times.
absl::StatusOr<JobTrace> ReplayTrace(const JobTrace& job, const ReplayModel& model,
                                     const ReplayResult& result);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_REPLAY_TRACE_H_
