#ifndef BANDONEON_COMMON_CLUSTER_SCHEDULER_CLIENT_H_
#define BANDONEON_COMMON_CLUSTER_SCHEDULER_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cluster/control_plane.h"

namespace bdn {

// A node's line to the scheduler at `address` (host:port) over gRPC. Connects in Join, which waits
// for a scheduler that is not up yet. From Join on it sends heartbeats; when the scheduler has not
// answered for a lease it ends every wait and tells on_failure. Closing it before Leave loses the
// node.
std::unique_ptr<ControlPlane> ConnectToScheduler(const std::string& address);

// The state of the job at `address` as one JSON object, for `bandoneon status`:
// {"job_id", "state", "missing", "failure", "epoch", "catalogue_version", "tensors", "keys",
//  "nodes": [{"role", "rank", "node", "host", "address", "left", "step", "bytes_sent",
//             "bytes_received", "seconds_since_heartbeat", "keys", "key_bytes"}]}.
// Unavailable where nobody answers in time.
absl::StatusOr<std::string> FetchStatusJson(const std::string& address, absl::Duration timeout,
                                            const std::string& token = "");

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_SCHEDULER_CLIENT_H_
