#ifndef BANDONEON_COMMON_CLUSTER_CONTROL_PLANE_H_
#define BANDONEON_COMMON_CLUSTER_CONTROL_PLANE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/endpoint.h"
#include "common/base/link_security.h"
#include "common/cluster/catalogue.h"
#include "common/cluster/held_bytes.h"
#include "common/cluster/membership.h"
#include "common/cluster/reports.h"
#include "common/telemetry/quality_figures.h"
#include "common/telemetry/stage_times.h"

namespace bdn {

inline constexpr uint32_t kControlVersion = 14;

// What the scheduler decides for everybody.
struct JobConfig {
  std::string job_id;
  uint64_t run_seed = 0;
  int num_workers = 0;
  int num_servers = 0;
  uint64_t partition_bytes = uint64_t{4} << 20;      // of fp32 a key at most
  uint64_t fusion_bytes = uint64_t{1} << 20;         // tensors under this are fused up to this
  uint64_t min_compress_bytes = uint64_t{64} << 10;  // keys under this go uncompressed
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration lease_timeout = absl::Seconds(5);

  bool operator==(const JobConfig&) const = default;
};

struct JoinRequest {
  Role role = Role::kWorker;
  Rank wanted_rank = -1;            // -1: any free one
  std::string job_id;               // empty: whatever the scheduler runs; else it must match
  std::vector<Endpoint> endpoints;  // servers: where workers reach them, at most kMostEndpoints
  std::string host;                 // "hostname:pid"
  PublicKey public_key;             // of the node's transport; none where that has none
  int processes = 1;                // workers: how many processes push through it
};

struct JoinResult {
  NodeId node = 0;
  Rank rank = 0;
  JobConfig config;
  std::shared_ptr<const Membership> membership;
  std::string data_secret;     // what the job's nodes show each other on the data plane
  std::vector<int> processes;  // of each worker, by rank
};

// What the catalogue has gained since this node's last declaration that succeeded, in order. So with
// all of its declarations' a node has the whole catalogue.
using DeclareResult = std::vector<SharedDelta>;

// What a node tells about itself with each heartbeat, for `bandoneon status`.
struct NodeProgress {
  Step step = 0;  // the highest finished
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  HeldBytes held = {};  // of a server
  StageCounts stages = {};
  uint64_t ended =
      0;  // steps that ended since it joined: `step` goes on where a checkpoint stopped

  // Takes up what was said later. Threads of a node that end two steps may speak in the other order: what
  // only counts up never falls.
  void Update(const NodeProgress& later) {
    step = std::max(step, later.step);
    ended = std::max(ended, later.ended);
    bytes_sent = std::max(bytes_sent, later.bytes_sent);
    bytes_received = std::max(bytes_received, later.bytes_received);
    held = later.held;
    stages = later.stages;
  }
};

// A node's connection to the scheduler. Thread-safe. Every wait ends: by its answer, by `timeout`,
// by the failure of the job, or by Close; its error names who was missing.
class ControlPlane {
 public:
  // Delivered on a thread of the control plane, one at a time, never inside a call of ours.
  struct Events {
    // Servers see one more view once all workers have left: a later epoch, no workers. Their work
    // is done, and they may leave.
    std::function<void(std::shared_ptr<const Membership>)> on_membership;
    // To servers: what a version added to the catalogue; each, in order. A server that has
    // installed its own of the keys calls AcknowledgePlacement.
    std::function<void(SharedDelta)> on_catalogue;
    // To servers: workers, by rank, that are leaving while others are not, besides those that it
    // was told of before. What the servers have not got of them by now they never will.
    std::function<void(std::vector<Rank>)> on_leaving;
    // The job is over: a node or the scheduler was lost, or a node left with an error. At most
    // once; the message names the culprit.
    std::function<void(absl::Status)> on_failure;
    // All workers left in order: the job is done, and servers may go. At most once; never with the
    // other.
    std::function<void()> on_finished;
  };

  virtual ~ControlPlane() = default;

  // Joins and waits until all nodes have joined. Once, first.
  virtual absl::StatusOr<JoinResult> Join(const JoinRequest& request, absl::Duration timeout) = 0;

  // Begins the delivery of events, starting with what is already known. Once, after Join.
  virtual void Watch(Events events) = 0;

  // Declares tensors, in the order of this worker's list, and returns once all workers declared the
  // same set and all servers have installed their keys. The n-th call of each worker belongs to the
  // n-th of the others; one call at a time. Costs what is declared, however much was before.
  // InvalidArgument for a conflict names both workers and the tensor; ResourceExhausted names the
  // limit of the scheduler that it would pass; Aborted names a worker that is leaving instead.
  virtual absl::StatusOr<DeclareResult> Declare(const std::vector<TensorDeclaration>& tensors,
                                                absl::Duration timeout) = 0;

  // This worker is done with tensors, by number in the catalogue: it will not name them again. When all
  // workers that are not leaving have said so the servers forget their keys. A declaration of the same
  // names that comes after it is of new tensors. Never waits; who repeats it changes nothing.
  virtual void Retire(const std::vector<uint32_t>& tensors) = 0;

  // A server has installed, or forgotten, the keys that the placement of this version says.
  virtual absl::Status AcknowledgePlacement(PlacementVersion version) = 0;

  // Waits for all workers to come to the barrier of this name; names may be used again. Aborted:
  // one is leaving instead.
  virtual absl::Status Barrier(const std::string& name, absl::Duration timeout) = 0;

  // The latest progress goes out with the next heartbeat, but for its stages: ReportStages.
  virtual void ReportProgress(const NodeProgress& progress) = 0;

  // What goes out of this node's stages with each heartbeat from now on. `read` runs on a thread of
  // the control plane, or inside ReportProgress, until Close.
  virtual void ReportStages(std::function<StageCounts()> read) = 0;

  // The same of the quality of the links that it encodes for.
  virtual void ReportQuality(std::function<std::vector<QualityGroup>()> read) = 0;

  // A value that the program of this worker named, for who looks at the job. Goes with the next heartbeat;
  // never waits. InvalidArgument says what is wrong with the name; ResourceExhausted: too many names.
  virtual absl::Status ReportValue(const ReportedValue& value) = 0;

  // Leaves: with OK after the job's work is done (a worker's, once all workers are leaving
  // or `timeout` passed, which ends the job), with an error to end the job for everybody, naming
  // this node and the reason.
  virtual absl::Status Leave(const absl::Status& reason, absl::Duration timeout) = 0;

  // Ends every wait and the delivery of events, and waits for the last one. Idempotent.
  virtual void Close() = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_CONTROL_PLANE_H_
