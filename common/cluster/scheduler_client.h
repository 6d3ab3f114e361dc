#ifndef BANDONEON_COMMON_CLUSTER_SCHEDULER_CLIENT_H_
#define BANDONEON_COMMON_CLUSTER_SCHEDULER_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/credentials.h"

namespace bdn {

// The times at which waits log what they wait for: the first, and the interval after that.
struct WaitReports {
  absl::Duration first_of_join = absl::Seconds(5);
  absl::Duration interval = absl::Seconds(30);
};

// A factory of connections to a scheduler over gRPC.
class SchedulerClient {
 public:
  SchedulerClient() = delete;

  // Creates a control plane for the scheduler at `address`, which is host:port; InvalidArgument
  // where it is not. `clock` is borrowed. It connects in Join, which waits for a scheduler that is
  // not up yet, or not ready for another job. From Join on it sends heartbeats on a thread of its
  // own; when the scheduler has not answered for a lease, or for JobConfig::scheduler_timeout where
  // that is longer, every wait ends and on_failure says so. Closing it before Leave loses the node.
  static absl::StatusOr<std::unique_ptr<ControlPlane>> Create(const std::string& address,
                                                              const Credentials& credentials,
                                                              const Clock* clock,
                                                              const WaitReports& reports = {});
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_SCHEDULER_CLIENT_H_
