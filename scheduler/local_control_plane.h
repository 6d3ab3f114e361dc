#ifndef BANDONEON_SCHEDULER_LOCAL_CONTROL_PLANE_H_
#define BANDONEON_SCHEDULER_LOCAL_CONTROL_PLANE_H_

#include <memory>

#include "common/base/clock.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/credentials.h"
#include "scheduler/job.h"
#include "scheduler/job_host.h"

namespace bdn {

// A scheduler for a local cluster, which lives in one process: no sockets, no heartbeats, no
// leases. A node whose control plane is closed before it left is lost at once. Thread-safe.
class LocalScheduler {
 public:
  // Borrows `clock`. REQUIRES: CheckJobOptions of the options is OK.
  LocalScheduler(const JobConfig& config, const Clock* clock);
  LocalScheduler(JobOptions options, const Clock* clock);

  // Makes a connection for one node. The scheduler must outlive it.
  std::unique_ptr<ControlPlane> Connect(Credentials credentials = {});

  JobHost* host() { return &host_; }

 private:
  JobHost host_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_LOCAL_CONTROL_PLANE_H_
