#ifndef BANDONEON_COMMON_CLUSTER_STATUS_JSON_H_
#define BANDONEON_COMMON_CLUSTER_STATUS_JSON_H_

#include <string>

#include "absl/status/statusor.h"

namespace bandoneon::control {
class StatusReply;
}

namespace bdn {

// Returns the state of a job as one JSON object in ASCII; a byte of a name beyond ASCII becomes the
// character of its number:
// {"job_id", "state", "missing", "failure", "epoch", "catalogue_version", "tensors", "keys",
//  "nodes": [{"role", "rank", "node", "host", "processes", "address", "listen_address", "left",
//             "step", "bytes_sent", "bytes_received", "seconds_since_heard", "keys", "key_bytes",
//             "server_bytes", "held", "rows", "stages"}],
//  "suspects": [{"node", "host", "kind", "seconds", "share", "since_seconds_ago", "sentence"}],
//  "heat": [{"node", "host", "kinds": {KIND: {"seconds", "share"}}}]}
// "held" is for servers only: {"total", "weights", "replicas", "moments", "residuals", "sums",
// "waiting", "replies", "values", "rows"}, in bytes, as the server counted them when it last sent a
// reply, or gave up keys, before its last heartbeat. "rows" is of servers that have had rows of
// tables: {"held", "added", "removed", "not_admitted"}. "stages" is {NAME: {"items", "bytes",
// "wall_ns", "cpu_ns"}} for all phases of the role, since the node joined and as of its last
// heartbeat. "suspects" and "heat" are what docs/troubleshooting.md (A slow job)
// explains. Where the reply has a history, there is "history": {"steps_per_second", "waits",
// "windows", "curves", "quality", "events"}; docs/status_page.md describes it. InvalidArgument for
// a reply that no scheduler of this build makes.
absl::StatusOr<std::string> StatusToJson(const bandoneon::control::StatusReply& reply);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_STATUS_JSON_H_
