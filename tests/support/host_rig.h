#ifndef BANDONEON_TESTS_SUPPORT_HOST_RIG_H_
#define BANDONEON_TESTS_SUPPORT_HOST_RIG_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "worker/host/host_client.h"
#include "worker/host/host_server.h"
#include "worker/local/local_cluster.h"
#include "worker/worker.h"

namespace bdn::testing {

// Returns the two ends of a stream between a process and its daemon.
std::pair<FileDescriptor, FileDescriptor> SocketPair();

// A local cluster whose processes take part through host daemons, all in this process: real
// servers, workers, sockets and shared memory.
class HostRig {
 public:
  struct Options {
    std::vector<int> hosts;          // processes of each; 0 is a worker without a daemon
    std::vector<std::string> flags;  // as LocalCluster's; `workers` comes first
    Worker::Options worker;
    std::string codec = "";   // of pushes inside hosts
    int attaches_later = -1;  // the processes of this host attach in AttachProcesses alone
  };
  explicit HostRig(const Options& options);
  explicit HostRig(std::vector<int> hosts, std::vector<std::string> flags = {})
      : HostRig(Options{.hosts = std::move(hosts), .flags = std::move(flags)}) {}
  ~HostRig();

  int size() const { return static_cast<int>(clients_.size()); }
  Client& client(int rank) { return *clients_[rank]; }
  // Runs `body` for every rank at once, on a thread each, and waits.
  void OnEach(const std::function<void(Client& client, int rank)>& body);
  // Attaches the processes of the host that does it later.
  void AttachProcesses(int host);
  // Cuts a host off from the scheduler, which counts it as lost. Its processes go on to attach.
  void LoseHost(int host) { hosts_[host].control->Close(); }
  // Ends the daemon of a host, as if it had died.
  void StopDaemon(int host);
  // Ends what is left of a host that is lost, and starts it anew: its processes are candidates.
  void StartAgain(int host);
  HostServer& daemon(int host) { return *hosts_[host].server; }
  // Returns the memory that all servers hold.
  HeldBytes held() const { return cluster_->held(); }
  // Returns a counter of that process, or of its daemon.
  uint64_t Counter(int rank, const std::string& name) const;

 private:
  struct Host {
    Registry telemetry;
    std::unique_ptr<HostServer> server;  // null: there is none
    std::unique_ptr<Worker> worker;
    ControlPlane* control = nullptr;  // of the worker
    int first = 0;                    // the rank of its first process
  };

  void MakeServer(int host);
  // Starts the host's worker, its daemon, if it has one, and its processes.
  void Start(int host);

  const Options options_;
  const SteadyClock clock_;
  std::unique_ptr<LocalCluster> cluster_;
  std::vector<Host> hosts_;
  std::vector<std::unique_ptr<Registry>> telemetry_;  // by rank
  std::vector<std::shared_ptr<Client>> clients_;      // by rank
};

// Pushes and waits, a minute at most.
absl::StatusOr<PushResult> PushPull(Client& client, uint32_t tensor, std::vector<float>& data,
                                    PushRequest request = {});

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_HOST_RIG_H_
