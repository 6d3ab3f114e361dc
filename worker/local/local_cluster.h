#ifndef BANDONEON_WORKER_LOCAL_LOCAL_CLUSTER_H_
#define BANDONEON_WORKER_LOCAL_LOCAL_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/cluster/control_plane.h"
#include "common/telemetry/registry.h"
#include "common/transport/loopback.h"
#include "scheduler/local_control_plane.h"
#include "server/server.h"

namespace bdn {

// A scheduler and servers on threads of this process, joined by a loopback network. It runs the
// real state machines and threads, without sockets. Thread-safe. Its workers must be destroyed
// before it is.
class LocalCluster {
 public:
  using TransportFactory = std::function<std::unique_ptr<Transport>()>;

  // Makes a cluster from settings, given as flags ("--workers=4"): those of the scheduler, and for
  // each server `shards`, `max-bytes-in-flight`, `max-bytes-queued`, `quality-every` and
  // `quality-guard`.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Create(
      const std::vector<std::string>& flags);
  // Makes a cluster over another network, which outlives the cluster, and whose transports know
  // "loopback://" addresses.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Create(const std::vector<std::string>& flags,
                                                              TransportFactory make_transport);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  std::unique_ptr<ControlPlane> Connect() { return scheduler_.Connect(); }
  std::unique_ptr<Transport> MakeTransport() { return make_transport_(); }
  // Returns the bytes that all servers hold. REQUIRES: a worker has joined.
  HeldBytes held() const;

 private:
  struct ServerNode {
    Registry telemetry;
    std::unique_ptr<ControlPlane> control;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<Server> server;
    std::thread starter;  // waits until all nodes have joined
  };

  LocalCluster(const JobConfig& config, const Server::Options& server,
               std::unique_ptr<LoopbackNetwork> network, TransportFactory make_transport);

  const std::unique_ptr<LoopbackNetwork> network_;  // null with another network
  const TransportFactory make_transport_;
  const SteadyClock clock_;
  LocalScheduler scheduler_;
  std::vector<ServerNode> servers_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_LOCAL_LOCAL_CLUSTER_H_
