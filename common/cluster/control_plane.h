#ifndef BANDONEON_COMMON_CLUSTER_CONTROL_PLANE_H_
#define BANDONEON_COMMON_CLUSTER_CONTROL_PLANE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/endpoint.h"
#include "common/base/link_security.h"
#include "common/base/status.h"
#include "common/cluster/catalogue.h"
#include "common/cluster/held_bytes.h"
#include "common/cluster/membership.h"
#include "common/cluster/reports.h"
#include "common/cluster/row_counts.h"
#include "common/cluster/trace_dump.h"
#include "common/telemetry/quality_figures.h"
#include "common/telemetry/stage_times.h"
#include "common/telemetry/work_counts.h"

namespace bdn {

// The version of the control plane's protocol. Nodes and scheduler of different versions do not
// join.
inline constexpr uint32_t kControlVersion = 26;
// The most steps of which workers keep their pushes for servers that are lost.
inline constexpr uint32_t kMostReplaySteps = 128;

// The decisions of the scheduler that hold for all nodes.
struct JobConfig {
  std::string job_id;
  uint64_t run_seed = 0;
  int num_workers = 0;  // the ranks of workers: so many are present at most
  // The job begins once so many workers have joined, of the lowest ranks; 0: num_workers. Others
  // come once it runs, as candidates for the ranks that are vacant.
  int first_workers = 0;
  int num_servers = 0;
  // The job goes on without a worker that is lost while at least so many are left; 0: all.
  int min_workers = 0;
  // A worker for which rounds wait so long is taken for lost; 0: never.
  absl::Duration stuck_timeout = absl::ZeroDuration();
  // A server that does not answer most workers for so long is taken for lost, and so is a worker
  // that alone gets no answer of a server; 0: never.
  absl::Duration link_timeout = absl::ZeroDuration();
  // A node waits so long for a scheduler that does not answer, because one that starts again goes
  // on with the job; 0: none does, and a node waits for a lease.
  absl::Duration scheduler_timeout = absl::ZeroDuration();
  // The keys of a server that is lost are rebuilt on another, for which each worker keeps its
  // pushes of so many steps at most; 0: the job ends with a server.
  uint32_t replay_steps = 0;
  uint64_t partition_bytes = uint64_t{4} << 20;  // most bytes of fp32 a key
  // Tensors of fewer bytes are fused into groups of at most so many.
  uint64_t fusion_bytes = uint64_t{1} << 20;
  uint64_t min_compress_bytes = uint64_t{64} << 10;  // keys of fewer bytes go uncompressed
  // The number of buckets into which tables are divided, a power of two; 0: the least one that is
  // at least four times the number of servers.
  uint32_t row_buckets = 0;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration lease_timeout = absl::Seconds(5);

  // Returns the number of workers with which the job begins.
  int NumFirstWorkers() const { return first_workers > 0 ? first_workers : num_workers; }
  // Returns whether there may be fewer workers than ranks while the job goes on.
  bool MayHaveVacantRanks() const { return min_workers > 0 && min_workers < num_workers; }

  bool operator==(const JobConfig&) const = default;
};

// The facts about itself with which a node asks to join.
struct JoinRequest {
  Role role = Role::kWorker;
  Rank wanted_rank = -1;  // -1: any free rank
  std::string job_id;     // empty: any job that the scheduler runs; otherwise it must be the same
  std::vector<Endpoint> endpoints;  // of servers: the ways to reach them, at most kMostEndpoints
  std::string host;                 // "hostname:pid", for people to read
  PublicKey public_key;             // the CURVE key of the node's transport; none where it has none
  int processes = 1;                // of workers: the number of processes that push through it
  // A random number of this node, the same in all its attempts to join. A node that has joined, and
  // whose answer was lost, is answered again by it. 0: none, which nodes in one process need not.
  uint64_t join_id = 0;
};

// The error of a server that waited to join a job, or came to join it, when the job had ended well
// without it. Abseil has no code for that, so it is the code FailedPrecondition with a fact.
inline constexpr char kUnneededFact[] = "bandoneon/unneeded";
template <typename... Args>
absl::Status Unneeded(const absl::FormatSpec<Args...>& format, const Args&... args) {
  absl::Status status = FailedPrecondition(format, args...);
  status.SetPayload(kUnneededFact, absl::Cord());
  return status;
}
inline bool IsUnneeded(const absl::Status& status) {
  return status.GetPayload(kUnneededFact).has_value();
}

// The answer to a join.
struct JoinResult {
  NodeId node = 0;
  Rank rank = 0;
  JobConfig config;
  std::shared_ptr<const Membership> membership;
  std::string data_secret;     // the secret that the job's nodes show each other on the data plane
  std::vector<int> processes;  // the number of processes of each worker, by rank
  // Of a worker: the job runs already, and lets the worker in at a boundary (ControlPlane).
  bool is_candidate = false;
};

// Names of barriers that begin so are boundaries: places between two steps at which a job takes
// workers in. Workers meet at the one of this very name.
inline constexpr char kBoundary[] = "bandoneon/boundary";
inline bool IsBoundary(std::string_view barrier) { return barrier.starts_with(kBoundary); }

// The answer to an arrival at a barrier: the same for all workers that met.
struct Met {
  std::vector<Rank> vacant;  // rising: ranks of workers without which the job went on by then
  // Of a boundary at which workers were taken in: the epoch that began so, and their ranks, rising.
  // 0 and none where nobody was.
  Epoch epoch = 0;
  std::vector<Rank> newcomers;

  bool operator==(const Met&) const = default;
};

// A worker for which rounds at a server wait, or a server that does not answer a worker.
struct NodeWait {
  NodeId node = 0;
  // Since the oldest round that waits for it was first seen so; or the time in which questions to
  // it had no answer.
  absl::Duration wait;

  bool operator==(const NodeWait&) const = default;
};

// The additions to the catalogue since this node's last declaration that succeeded, in order. The
// results of all its declarations together are the whole catalogue.
using DeclareResult = std::vector<SharedDelta>;

// The figures about itself that a node sends with each heartbeat, for `bandoneon status`.
struct NodeProgress {
  Step step = 0;  // the highest finished step
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  HeldBytes held = {};  // of a server
  RowCounts rows = {};  // of a server
  // The tables of a server, names rising. ReportTables brings them, and ReportProgress never does.
  std::vector<TableCounts> tables = {};
  StageCounts stages = {};
  WorkCounts work = {};
  // Steps that ended since the node joined; `step` goes on where a checkpoint stopped.
  uint64_t ended = 0;
  uint64_t keys_rebuilding = 0;  // of a server: keys of lost servers that are not whole yet

  // Takes up later progress. Threads of a node that end two steps may call in the other order, so
  // numbers that only count up never fall.
  void Update(const NodeProgress& later) {
    step = std::max(step, later.step);
    ended = std::max(ended, later.ended);
    bytes_sent = std::max(bytes_sent, later.bytes_sent);
    bytes_received = std::max(bytes_received, later.bytes_received);
    held = later.held;
    rows = later.rows;
    tables = later.tables;
    stages = later.stages;
    work = later.work;
    keys_rebuilding = later.keys_rebuilding;
  }
};

// A node's connection to the scheduler. Thread-safe. Every wait ends: by its answer, by `timeout`,
// by the failure of the job, or by Close; the error names the nodes that were missing. The
// scheduler says that a timeout is over; a node waits at most 5 s longer for that answer.
class ControlPlane {
 public:
  // The callbacks for events. They run on a thread of the control plane, one at a time, never
  // inside a call of ControlPlane.
  struct Events {
    // A new membership. Servers get one more once all workers have left: a later epoch without
    // workers. Their work is done then, and they may leave.
    std::function<void(std::shared_ptr<const Membership>)> on_membership;
    // To servers: the additions of each version of the catalogue, in order. A server that has
    // installed its own keys of one calls AcknowledgePlacement.
    std::function<void(SharedDelta)> on_catalogue;
    // To servers: the ranks of workers that are leaving while others are not, without those that it
    // was told of before. Anything that the servers have not received from them by now will never
    // come.
    std::function<void(std::vector<Rank>)> on_leaving;
    // The job is over: a node or the scheduler was lost, or a node left with an error. Or, where
    // IsEvicted(), it goes on without this node. At most once; the message names the culprit.
    std::function<void(absl::Status)> on_failure;
    // To workers: so many candidates wait at a boundary to be taken in. May be null.
    std::function<void(int ready)> on_candidates;
    // All workers left regularly: the job is done, and servers may end. At most once, and never
    // together with on_failure.
    std::function<void()> on_finished;
    // Makes the recording that is asked for. It may block: it runs on a thread of its own, which is
    // started for it, beside other callbacks. An error tells why there is none. May be null: the
    // node records nothing. Never called in a local cluster, at which nobody can look.
    std::function<absl::StatusOr<std::string>(const DumpOrder&)> on_dump;
  };

  virtual ~ControlPlane() = default;

  // Joins, and waits until all nodes have joined. A job that runs takes servers in the place of
  // lost ones, and a worker as a candidate for a vacant rank where min_workers lets ranks be
  // vacant; both wait until a rank is. A server, or a candidate, may get an error that
  // IsUnneeded(). To be called once, first.
  virtual absl::StatusOr<JoinResult> Join(const JoinRequest& request, absl::Duration timeout) = 0;

  // Begins the delivery of events, starting with what is already known. To be called once, after
  // Join.
  virtual void Watch(Events events) = 0;

  // Declares tensors, in the order of this worker's list, and returns once all workers have
  // declared the same set and all servers have installed their keys. The n-th call of each worker
  // belongs to the n-th calls of the others; one call at a time. The cost is that of these tensors,
  // however many there were before. InvalidArgument for a conflict names both workers and the
  // tensor; ResourceExhausted names the limit of the scheduler that would be passed; Aborted names
  // a worker that is leaving instead.
  //
  // A candidate, and the worker that it becomes, is answered by name what the job has declared so
  // already; InvalidArgument names a tensor that differs. What else it declares is its part in the
  // next call of all once it was taken in; before that NotFound names the tensor.
  virtual absl::StatusOr<DeclareResult> Declare(const std::vector<TensorDeclaration>& tensors,
                                                absl::Duration timeout) = 0;

  // Says that this worker is done with tensors, by number in the catalogue, and will not use them
  // again. When all workers that are not leaving have said so, the servers forget their keys. A
  // later declaration of the same names is of new tensors. Never waits; repeating it changes
  // nothing.
  virtual void Retire(const std::vector<uint32_t>& tensors) = 0;

  // Says that a server has installed, or forgotten, its keys as the placement of this version
  // tells. With catalogue 0: that it lets in the workers of that epoch.
  virtual absl::Status AcknowledgePlacement(PlacementVersion version) = 0;

  // Waits for all workers that are present to come to the barrier of this name; names may be used
  // again. Returns the ranks of workers without which the job went on by then, rising, which is the
  // same for all who met. Aborted: a worker is leaving instead.
  virtual absl::StatusOr<std::vector<Rank>> Meet(const std::string& name,
                                                 absl::Duration timeout) = 0;
  absl::Status Barrier(const std::string& name, absl::Duration timeout) {
    return Meet(name, timeout).status();
  }

  // Waits at the boundary for all workers that are present, which wait for no candidate. Those
  // candidates that wait here, too, are taken in when the last worker has come: a new epoch begins,
  // and all who met get the same answer, newcomers once all servers let them in. A candidate waits
  // until then. Errors are those of Meet; and a candidate gets one that IsUnneeded() where the job
  // has ended well without it.
  virtual absl::StatusOr<Met> MeetAtBoundary(absl::Duration timeout) = 0;

  // Sets the progress that goes out with the next heartbeat, except its phases and its work:
  // ReportStages, ReportWork.
  virtual void ReportProgress(const NodeProgress& progress) = 0;

  // Sets the source of the phases' counts that go out with each heartbeat from now on. `read` runs
  // on a thread of the control plane, or inside ReportProgress, until Close.
  virtual void ReportStages(std::function<StageCounts()> read) = 0;

  // Sets likewise the source of the totals by which the scheduler finds who slows the job.
  virtual void ReportWork(std::function<WorkCounts()> read) = 0;

  // Sets likewise the source of the quality of the links that this node encodes for.
  virtual void ReportQuality(std::function<std::vector<QualityGroup>()> read) = 0;

  // Sets likewise the source of the workers for which this server's rounds wait, or of the servers
  // that do not answer this worker; nodes rise.
  virtual void ReportWaits(std::function<std::vector<NodeWait>()> read) = 0;

  // Sets likewise the source of the counts of this server's tables, names rising.
  virtual void ReportTables(std::function<std::vector<TableCounts>()> read) = 0;

  // Reports a value that the program of this worker has named, for people who look at the job. It
  // goes with the next heartbeat; this never waits. InvalidArgument says what is wrong with the
  // name; ResourceExhausted: there are too many names.
  virtual absl::Status ReportValue(const ReportedValue& value) = 0;

  // Leaves the job. With OK it is for after the job's work is done: a worker's call waits until all
  // workers are leaving, or `timeout` passed, which ends the job. With an error it ends the job for
  // all nodes, which are told this node and the reason.
  virtual absl::Status Leave(const absl::Status& reason, absl::Duration timeout) = 0;

  // Asks to leave a job that goes on, for a reason of this server's own. With OK the job has taken
  // it out, and others answer for its keys. FailedPrecondition: no other can, or the work is done;
  // nothing has changed then. After any other error it may be out.
  virtual absl::Status TryToLeave(const absl::Status& reason, absl::Duration timeout) = 0;

  // Returns how long ago the scheduler has answered last; it is asked at every heartbeat. 0 where
  // there is none, and before Join.
  virtual absl::Duration SchedulerSilence() const { return absl::ZeroDuration(); }

  // Ends every wait and the delivery of events, and waits for the last callback. Idempotent.
  virtual void Close() = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_PLANE_H_
