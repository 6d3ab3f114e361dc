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
#include "common/telemetry/history_file.h"
#include "common/telemetry/recorder.h"
#include "common/telemetry/registry.h"
#include "common/telemetry/stage_times.h"
#include "common/transport/transport.h"
#include "link/link_monitor.h"
#include "link/link_totals.h"
#include "server/late_workers.h"
#include "server/rank_waits.h"
#include "server/reply_queue.h"
#include "server/session_table.h"
#include "server/shard_map.h"
#include "server/shard_runner.h"
#include "server/waiting_frames.h"

namespace bdn {

// A server without its main(): shards on threads of their own, which get frames from a transport
// and learn from a control plane which keys to hold. Thread-safe.
class Server {
 public:
  struct Options {
    std::string listen = "tcp://127.0.0.1:0";
    // The address that workers connect to; empty: the one that `listen` was bound to.
    std::string advertise;
    int num_shards = 1;
    JoinRequest join;         // role, endpoints and public key are filled in
    Credentials credentials;  // shown to the scheduler
    absl::Duration join_timeout = absl::Minutes(2);
    // Limits the bytes for keys. A declaration is refused if the keys' costs, with pushes in rank
    // order (link/key_cost.h), exceed it; a push that must wait for lower ranks' fails its round if
    // the bytes held would exceed it.
    uint64_t max_bytes = UINT64_MAX;
    uint64_t max_bytes_waiting = UINT64_MAX;  // of one worker's frames that wait for a shard
    // The longest payload that the transport lets through.
    uint64_t max_frame_bytes = kMaxPayloadBytes;
    // The most bytes of replies to one worker that the transport is given at a time.
    uint64_t max_bytes_in_flight = uint64_t{16} << 20;
    // Borrowed; null: no stage times are counted.
    const StageClock* stage_clock = MachineStageClock(false);
    QualityOptions quality;
    std::string history_file;            // as HistoryFile::Open
    RecorderOptions recorder;            // by default nothing is recorded
    std::function<void()> on_listening;  // called inside Start, before the join; may be null
  };
  struct Stats {
    ShardStats shards;
    HeldBytes held;
    uint64_t most_held = 0;  // the sum of the most that each shard ever held
    BufferPool::Stats pool;
    TransportStats transport;
    uint64_t frames_unauthenticated = 0;
    uint64_t frames_forged = 0;
    uint64_t frames_dropped = 0;
    StageCounts stages;
    uint64_t silent_seconds = 0;  // as ControlPlane::SchedulerSilence
  };

  // All pointers are borrowed and outlive the server, which reports to `telemetry` while it serves.
  Server(const Options& options, Registry* telemetry, ControlPlane* control, Transport* transport);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens, joins, waits until all nodes have joined, and begins to serve. Blocks meanwhile. To be
  // called once.
  absl::Status Start();
  // Waits until the job is over. OK when all workers have left regularly or Stop() was called, else
  // the reason why the job failed.
  absl::Status Wait();
  // Ends Wait(), from any thread. Not async-signal-safe.
  void Stop();

  // Returns whether this server has held rows of tables, which no other can make again.
  bool HasTables() const;

  // REQUIRES: Start has returned.
  Stats stats() const;

 private:
  using Plans = std::vector<std::shared_ptr<const KeyPlan>>;

  // Callbacks of the transport, on its threads.
  void OnFrame(ConnectionId from, Frame frame);
  void OnHello(ConnectionId from, const Frame& frame);
  void OnGone(ConnectionId connection);
  void Refuse(ConnectionId to, const FrameHeader& request, const absl::Status& status);

  // Called by shards, on their threads. SendTo drops a frame to a node that has no connection.
  void SendTo(NodeId node, Frame frame);
  void ReportProgress(Step step);

  // Callbacks of the control plane, on its thread.
  void OnMembership(std::shared_ptr<const Membership> membership);
  void OnCatalogue(const CatalogueDelta& delta);
  void OnLeaving(const std::vector<Rank>& ranks);
  // Adds the new keys that are placed on this server, and forgets those that are retired. After an
  // error nothing has changed.
  absl::Status TakeDelta(const CatalogueDelta& delta);
  // ResourceExhausted: the transport's limit is below the longest frame of the key.
  absl::Status CheckFrame(const KeyPlan& plan) const;
  // Counts the cost of new keys. ResourceExhausted names the limit and the cost; then nothing has
  // changed.
  absl::Status Reserve(const Plans& plans);
  // The keys that one shard gains and loses by a version of the catalogue, or of the membership.
  struct ShardNews {
    struct Added {
      std::shared_ptr<const KeyPlan> plan;
      bool is_rebuilt = false;  // a server that is lost had it before
    };
    std::vector<Added> added;
    std::vector<Key> retired;
  };
  // A key of the catalogue, which may be another server's.
  struct Known {
    KeyEntry entry;
    std::string tensor;
    NodeId home = 0;
    Epoch placed_in = 0;
    std::vector<TensorDeclaration> tables;  // of a key of rows: by segment
  };
  // FailedPrecondition: the key is one of rows, and comes from a server that is lost.
  absl::Status CheckIsNoLostRows(const Known& key) const;
  // Makes the plans of keys that come to this server, counts their cost and assigns them to shards.
  // After an error nothing has changed.
  // `complete` is the membership and catalogue of which they are the last.
  absl::Status TakeKeys(const std::vector<const Known*>& keys, PlacementVersion complete,
                        std::vector<ShardNews>* news);
  // Ends the job for all nodes, because of this server.
  void Fail(const absl::Status& status);
  // Returns when every shard has its keys: from then on frames about them are answered.
  void GiveToShards(uint32_t catalogue_version, const std::vector<ShardNews>& news);
  // Runs `work` on each shard's thread, with the shard's index, and returns when all have finished.
  void OnAllShards(const std::function<Sends(size_t, ServerShard&)>& work);
  // Returns the ranks for which rounds wait, as the shards last found them, and has the shards look
  // anew. A shard that has not looked since the last call tells nothing.
  std::vector<NodeWait> ReadWaits();
  // Returns what the connections of each worker have carried.
  std::vector<LinkTotals> Links() const;
  // Returns the counts of tables that shards gave since the last call, and asks them anew.
  std::vector<TableCounts> ReadTables();
  void Finish(const absl::Status& status);
  void AddMetrics();

  const Options options_;
  Registry* const telemetry_;
  ControlPlane* const control_;
  Transport* const transport_;
  const std::unique_ptr<StageTimes> stages_;  // null: no stage times are counted
  std::unique_ptr<Recorder> recorder_;        // null: nothing is recorded; made in Start
  std::unique_ptr<HistoryFile> history_;      // null: none is written; made in Start
  BufferPool pool_;
  MemoryBudget budget_;
  WaitingFrames waiting_;
  ReplyQueue replies_;
  QualityWatch quality_;                              // outlives shards_, which use it
  std::unique_ptr<RankWaits> waits_;                  // const once shards_ is filled
  std::vector<std::unique_ptr<ShardRunner>> shards_;  // const once sessions_ is set

  // Used by the control plane's thread alone, and before its callbacks begin.
  uint64_t declared_bytes_ = 0;  // the cost of all keys of this server
  absl::flat_hash_map<Key, uint64_t> costs_;
  size_t num_workers_ = 0;
  bool keys_survive_ = false;    // lost servers' keys are rebuilt on others
  bool workers_may_go_ = false;  // the job goes on without some workers
  std::shared_ptr<const Membership> membership_ = std::make_shared<const Membership>();
  uint32_t catalogue_version_ = 0;
  absl::flat_hash_map<Key, Known> known_;  // all keys of the catalogue, if they survive
  std::set<Rank> leaving_;

  // The findings of a shard when it last looked for late ranks.
  struct Late {
    LateWorkers ranks;
    bool is_fresh = false;  // not read yet
  };
  mutable Mutex counted_mu_;
  std::vector<std::vector<TableCounts>> counted_ ABSL_GUARDED_BY(counted_mu_);  // by shard
  bool has_tables_ ABSL_GUARDED_BY(counted_mu_) = false;  // it had a key of rows
  Mutex late_mu_;
  std::vector<Late> late_ ABSL_GUARDED_BY(late_mu_);  // by shard

  mutable Mutex mu_;
  CondVar finished_changed_;
  NodeId node_ ABSL_GUARDED_BY(mu_) = 0;
  std::string data_secret_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<SessionTable> sessions_ ABSL_GUARDED_BY(mu_);  // null until the job has begun
  ShardMap shard_map_ ABSL_GUARDED_BY(mu_);
  PlacementVersion complete_ ABSL_GUARDED_BY(mu_);  // shard_map_ has all keys of this one
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mu_);
  uint64_t frames_unauthenticated_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t frames_forged_ ABSL_GUARDED_BY(mu_) = 0;
  Step highest_step_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t ended_steps_ ABSL_GUARDED_BY(mu_) = 0;  // how often highest_step_ rose
  const SteadyClock log_clock_;
  LimitedLog refusals_log_{&log_clock_};
  // Declared last, so destroyed first: they read the members above.
  std::vector<std::unique_ptr<Registry::Source>> metrics_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_SERVER_H_
