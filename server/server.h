#ifndef BANDONEON_SERVER_SERVER_H_
#define BANDONEON_SERVER_SERVER_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/buffer.h"
#include "common/base/mutex.h"
#include "common/cluster/control_plane.h"
#include "common/telemetry/registry.h"
#include "common/transport/transport.h"
#include "server/session_table.h"
#include "server/shard_runner.h"

namespace bdn {

// The server process without its main(): shards on threads of their own, fed by a transport and
// told what to hold by a control plane. Thread-safe.
class Server {
 public:
  struct Options {
    std::string listen = "tcp://127.0.0.1:0";
    std::string advertise;  // what workers connect to; empty: what listen came to
    int num_shards = 1;
    JoinRequest join;         // role and data_address are filled in
    Credentials credentials;  // asked of the workers
    absl::Duration join_timeout = absl::Minutes(2);
  };
  struct Stats {
    ShardStats shards;
    TransportStats transport;
    uint64_t frames_unauthenticated = 0;
    uint64_t frames_forged = 0;
  };

  // All are borrowed and outlive the server, which reports to `telemetry` while it serves.
  Server(const Options& options, Registry* telemetry, ControlPlane* control, Transport* transport);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens, joins, waits until all nodes have joined, serves. Once.
  absl::Status Start();
  // Waits until the job is over: OK when all workers left in peace or Stop() was called, else why
  // it failed.
  absl::Status Wait();
  // Ends Wait(). Async-signal-unsafe; any thread.
  void Stop();

  // REQUIRES: Start has returned.
  Stats stats() const;

 private:
  using Routes = absl::flat_hash_map<Key, int>;  // to the shard

  void OnFrame(ConnectionId from, Frame frame);
  void SendTo(NodeId node, Frame frame);
  absl::Status OnHello(ConnectionId from, const Frame& frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(ConnectionId to, NodeId self, const FrameHeader& request, const absl::Status& status);
  void OnMembership(std::shared_ptr<const Membership> membership);
  void OnPlacement(std::shared_ptr<const PlacementTable> placement);
  void OnLeaving(const std::vector<Rank>& ranks);
  absl::Status AddKeys(const Catalogue& catalogue, const PlacementTable& placement);
  void Finish(const absl::Status& status);
  void ReportProgress(Step step);
  void ReadMetrics(std::span<uint64_t> values) const;

  const Options options_;
  Registry* const telemetry_;
  ControlPlane* const control_;
  Transport* const transport_;
  BufferPool pool_;
  std::vector<std::unique_ptr<ShardRunner>> shards_;  // const once sessions_ is there

  std::shared_ptr<const Catalogue> catalogue_;  // of the control plane's thread

  mutable Mutex mu_;
  CondVar finished_changed_;
  NodeId node_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<SessionTable> sessions_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Routes> routes_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> shard_bytes_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mu_);
  uint64_t frames_unauthenticated_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t frames_forged_ ABSL_GUARDED_BY(mu_) = 0;
  Step highest_step_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Registry::Source> metrics_;  // goes first: it reads all of the above
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SERVER_H_
