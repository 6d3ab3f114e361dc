#ifndef BANDONEON_COMMON_CLUSTER_STATUS_JSON_H_
#define BANDONEON_COMMON_CLUSTER_STATUS_JSON_H_

#include <string>

#include "absl/status/statusor.h"

namespace bandoneon::control {
class StatusReply;
}

namespace bdn {

// The state of a job as one JSON object in ASCII; bytes of names beyond ASCII become the characters of their
// numbers:
// {"job_id", "state", "missing", "failure", "epoch", "catalogue_version", "tensors", "keys",
//  "nodes": [{"role", "rank", "node", "host", "address", "left", "step", "bytes_sent",
//             "bytes_received", "seconds_since_heard", "keys", "key_bytes",
//             "server_bytes", "held", "stages"}]},
// "held" of servers alone: {"total", "weights", "replicas", "moments", "residuals", "sums", "waiting",
// "replies", "values"}, in bytes, with the last reply. "stages": {NAME: {"items", "bytes", "wall_ns",
// "cpu_ns"}}, of all stages of the role, since the node joined and as of its last heartbeat.
// Where the reply has a history, "history": {"steps_per_second", "waits", "windows", "curves", "quality", "events"};
// docs/status_page.md says what they are. InvalidArgument for a reply that no scheduler of this build makes.
absl::StatusOr<std::string> StatusToJson(const bandoneon::control::StatusReply& reply);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_STATUS_JSON_H_
