#ifndef BANDONEON_COMMON_CLUSTER_STATUS_FETCH_H_
#define BANDONEON_COMMON_CLUSTER_STATUS_FETCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cluster/credentials.h"

namespace bdn {

// Returns the state of the job whose scheduler listens at `address`, as StatusToJson
// (status_json.h) returns it, with two more members: "control_version", the version that the
// scheduler speaks, 0 where it does not say; and "own_control_version", the version of this
// process. Nodes join only where they are the same. InvalidArgument for a malformed address;
// PermissionDenied for a wrong token; Unavailable or DeadlineExceeded where no scheduler answers in
// time; Internal where its answer is not understood.
absl::StatusOr<std::string> FetchStatusJson(const std::string& address,
                                            const Credentials& credentials, absl::Duration timeout);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_STATUS_FETCH_H_
