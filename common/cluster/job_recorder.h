#ifndef BANDONEON_COMMON_CLUSTER_JOB_RECORDER_H_
#define BANDONEON_COMMON_CLUSTER_JOB_RECORDER_H_

#include <memory>

#include "common/cluster/control_plane.h"
#include "common/telemetry/recorder.h"

namespace bdn {

// Opens the recorder of a node that has joined a job. Null: nothing is to be recorded.
std::unique_ptr<Recorder> OpenRecorder(const RecorderOptions& options, const JoinRequest& join,
                                       const JoinResult& joined);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_JOB_RECORDER_H_
