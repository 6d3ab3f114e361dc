#ifndef BANDONEON_WORKER_C_API_LOCAL_CLUSTER_H_
#define BANDONEON_WORKER_C_API_LOCAL_CLUSTER_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/cluster/control_plane.h"
#include "common/transport/loopback.h"
#include "scheduler/local_control_plane.h"
#include "server/server.h"

namespace bdn {

// A scheduler and servers on threads of this process, joined by a loopback network: the real state
// machines and shells, without sockets. Thread-safe. Its workers must be gone before it is.
class LocalCluster {
 public:
  // Settings as flags ("--workers=4"): the scheduler's, and `shards` and `link` of each server.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Create(
      const std::vector<std::string>& flags);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  std::unique_ptr<ControlPlane> Connect() { return scheduler_.Connect(); }
  std::unique_ptr<Transport> MakeTransport() { return network_.MakeTransport(); }

 private:
  struct ServerNode {
    std::unique_ptr<ControlPlane> control;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Server> server;
    std::thread starter;  // waits for the full house
  };

  LocalCluster(const JobConfig& config, int num_shards);

  LoopbackNetwork network_;
  LocalScheduler scheduler_;
  std::vector<ServerNode> servers_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_LOCAL_CLUSTER_H_
