#ifndef BANDONEON_COMMON_CLUSTER_STATUS_FETCH_H_
#define BANDONEON_COMMON_CLUSTER_STATUS_FETCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cluster/credentials.h"

namespace bdn {

// The state of the job whose scheduler listens at `address`, as one JSON object:
// {"job_id", "state", "missing", "failure", "epoch", "catalogue_version", "tensors", "keys",
//  "nodes": [{"role", "rank", "node", "host", "address", "left", "step", "bytes_sent",
//             "bytes_received", "seconds_since_heard", "keys", "key_bytes",
//             "server_bytes", "held", "stages"}]},
// "held" of servers alone: {"total", "weights", "replicas", "moments", "residuals", "sums", "waiting",
// "replies", "values"}, in bytes, with the last reply. "stages": {NAME: {"items", "bytes", "wall_ns",
// "cpu_ns"}}, of all stages of the role, since the node joined and as of its last heartbeat.
// InvalidArgument for a malformed address; PermissionDenied for a wrong token; Unavailable or
// DeadlineExceeded where nobody answers in time.
absl::StatusOr<std::string> FetchStatusJson(const std::string& address,
                                            const Credentials& credentials, absl::Duration timeout);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_STATUS_FETCH_H_
