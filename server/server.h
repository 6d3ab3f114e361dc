#ifndef BANDONEON_SERVER_SERVER_H_
#define BANDONEON_SERVER_SERVER_H_

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/buffer.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/credentials.h"
#include "common/telemetry/registry.h"
#include "common/telemetry/stage_times.h"
#include "common/transport/transport.h"
#include "link/link_monitor.h"
#include "server/rank_waits.h"
#include "server/reply_queue.h"
#include "server/session_table.h"
#include "server/shard_map.h"
#include "server/shard_runner.h"
#include "server/waiting_frames.h"

namespace bdn {

// The server process without its main(): shards on threads of their own, fed by a transport and
// told what to hold by a control plane. Thread-safe.
class Server {
 public:
  struct Options {
    std::string listen = "tcp://127.0.0.1:0";
    std::string advertise;  // what workers connect to; empty: what listen came to
    int num_shards = 1;
    JoinRequest join;         // role, endpoints and key are filled in
    Credentials credentials;  // shown to the scheduler
    absl::Duration join_timeout = absl::Minutes(2);
    // For keys: what they cost in rank order (link/key_cost.h), checked when they are
    // declared, and what is held of them at any time.
    uint64_t max_bytes = UINT64_MAX;
    uint64_t max_bytes_waiting = UINT64_MAX;                   // for the shards, of one worker
    uint64_t max_frame_bytes = kMaxPayloadBytes;               // what the transport lets through
    uint64_t max_bytes_in_flight = uint64_t{16} << 20;         // of replies, to one worker
    const StageClock* stage_clock = MachineStageClock(false);  // borrowed; null: none are counted
    QualityOptions quality;
    std::function<void()> on_listening;  // inside Start, before it joins; may be null
  };
  struct Stats {
    ShardStats shards;
    HeldBytes held;
    uint64_t most_held = 0;  // the sum of what each shard held at its most
    BufferPool::Stats pool;
    TransportStats transport;
    uint64_t frames_unauthenticated = 0;
    uint64_t frames_forged = 0;
    uint64_t frames_dropped = 0;
    StageCounts stages;
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
  using Plans = std::vector<std::shared_ptr<const KeyPlan>>;

  // Of the transport.
  void OnFrame(ConnectionId from, Frame frame);
  void OnHello(ConnectionId from, const Frame& frame);
  void OnGone(ConnectionId connection);
  void Refuse(ConnectionId to, const FrameHeader& request, const absl::Status& status);

  // Of the shards, on their threads. A node without a connection gets nothing.
  void SendTo(NodeId node, Frame frame);
  void ReportProgress(Step step);

  // Of the control plane.
  void OnMembership(std::shared_ptr<const Membership> membership);
  void OnCatalogue(const CatalogueDelta& delta);
  void OnLeaving(const std::vector<Rank>& ranks);
  // Takes those of the keys that are placed here and new, and forgets those that are retired. After an error
  // it has done neither.
  absl::Status TakeDelta(const CatalogueDelta& delta);
  // Whether the key's frames get through.
  absl::Status CheckFrame(const KeyPlan& plan) const;
  // ResourceExhausted names the limit and what more keys would cost.
  absl::Status Reserve(const Plans& plans);
  // What a shard gains and loses by a version of the catalogue.
  struct ShardNews {
    Plans added;
    std::vector<Key> retired;
  };
  // Returns when every shard has its keys: then frames about them are answered.
  void GiveToShards(uint32_t catalogue_version, const std::vector<ShardNews>& news);
  // Returns when every shard, by its place, has done the work.
  void OnAllShards(const std::function<Sends(size_t, ServerShard&)>& work);
  void Finish(const absl::Status& status);
  void AddMetrics();

  const Options options_;
  Registry* const telemetry_;
  ControlPlane* const control_;
  Transport* const transport_;
  const std::unique_ptr<StageTimes> stages_;  // null: none are counted
  BufferPool pool_;
  MemoryBudget budget_;
  WaitingFrames waiting_;
  ReplyQueue replies_;
  QualityWatch quality_;                              // outlives shards_
  std::unique_ptr<RankWaits> waits_;                  // const once shards_ are there
  std::vector<std::unique_ptr<ShardRunner>> shards_;  // const once sessions_ is there

  // Of the control plane's thread.
  uint64_t declared_bytes_ = 0;  // the cost of all keys that are here
  absl::flat_hash_map<Key, uint64_t> costs_;
  size_t num_workers_ = 0;
  std::set<Rank> leaving_;

  mutable Mutex mu_;
  CondVar finished_changed_;
  NodeId node_ ABSL_GUARDED_BY(mu_) = 0;
  std::string data_secret_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SessionTable> sessions_ ABSL_GUARDED_BY(mu_);  // null until the job has begun
  ShardMap shard_map_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mu_);
  uint64_t frames_unauthenticated_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t frames_forged_ ABSL_GUARDED_BY(mu_) = 0;
  Step highest_step_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t ended_steps_ ABSL_GUARDED_BY(mu_) = 0;  // how often it rose
  const SteadyClock log_clock_;
  LimitedLog refusals_log_{&log_clock_};
  // They go first: they read all of the above.
  std::vector<std::unique_ptr<Registry::Source>> metrics_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SERVER_H_
