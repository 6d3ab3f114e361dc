#ifndef BANDONEON_COMMON_CLUSTER_JOB_RECORDER_H_
#define BANDONEON_COMMON_CLUSTER_JOB_RECORDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/trace_dump.h"
#include "common/telemetry/recorder.h"

namespace bdn {

// Opens the recorder of a node that has joined a job. Null: nothing is to be recorded.
std::unique_ptr<Recorder> OpenRecorder(const RecorderOptions& options, const JoinRequest& join,
                                       const JoinResult& joined);

// Returns the recording that a scheduler asked a node for. `recorder` is null where nothing is
// recorded, which the error says.
absl::StatusOr<std::string> RecordingFor(const DumpOrder& order, Recorder* recorder);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_JOB_RECORDER_H_
