#ifndef BANDONEON_SCHEDULER_JOB_EVENT_H_
#define BANDONEON_SCHEDULER_JOB_EVENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/declaration_list.h"
#include "scheduler/job_options.h"
#include "scheduler/waiting_calls.h"

// The events that change a job for good, from the moment at which all its nodes have joined. A job
// is a function of them and of nothing else: who replays them has the same membership, catalogue,
// open barriers and answers. Heartbeats, what nodes report for people, and time are none of them;
// what time decides is (NodeLost, CallEnded, JobStopped).

namespace bdn {

// All nodes have joined. The first event.
struct JobBegun {
  JobConfig config;
  DeclarationLimits limits;
  std::string data_secret;
  std::shared_ptr<const Membership> membership;
  std::map<NodeId, uint64_t> join_ids;
};

// A worker has sent a part of a declaration.
struct PartDeclared {
  NodeId node = 0;
  DeclarationPart part;
};

// A worker has come to a barrier.
struct BarrierReached {
  NodeId node = 0;
  std::string barrier;
  uint64_t number = 0;  // of its arrival; 0: none
};

// A node leaves, with OK or an error.
struct NodeLeft {
  NodeId node = 0;
  absl::Status reason;
};

// A server has installed a placement.
struct PlacementInstalled {
  NodeId node = 0;
  PlacementVersion version;
};

// A worker is done with tensors.
struct TensorsRetired {
  NodeId node = 0;
  std::vector<uint32_t> tensors;
};

// A node is known to be gone; `how` continues "worker 1 ...".
struct NodeLost {
  NodeId node = 0;
  std::string how;
};

// A server has joined the job that runs.
struct ServerJoined {
  NodeInfo server;
  uint64_t join_id = 0;
  // The server that is known to be gone, in whose place this one is; 0: none. `how` is as in
  // NodeLost.
  NodeId lost = 0;
  std::string how;
};

// A call of a node waits no more: its time was over, or nobody waits for its answer.
struct CallEnded {
  NodeId node = 0;
  WaitSubject subject;
};

// The job was ended from outside, or because no server was left.
struct JobStopped {
  std::string why;
};

// Another scheduler has taken the job up: no call of before waits any more.
struct JobResumed {};

// The barrier has these arrivals: of each node the numbers, where they have any. Stands for events
// that are left out.
struct BarrierState {
  std::string barrier;
  std::map<NodeId, std::set<uint64_t>> arrivals;
};

// The node's arrivals of these numbers have ended with these answers. Stands for events that are
// left out.
struct ArrivalsAnswered {
  NodeId node = 0;
  std::map<uint64_t, Met> answers;
};

// A worker has got a vacant rank of the job that runs, and waits to be taken in.
struct CandidateJoined {
  NodeInfo worker;
  uint64_t join_id = 0;
};

// A candidate is gone, and is forgotten.
struct CandidateGone {
  NodeId node = 0;
};

// A boundary at which candidates waited has ended: these were taken in, each with the numbers of
// its arrivals.
struct BoundaryEnded {
  std::string boundary;
  std::map<NodeId, std::set<uint64_t>> taken_in;
};

using JobEvent =
    std::variant<JobBegun, PartDeclared, BarrierReached, NodeLeft, PlacementInstalled,
                 TensorsRetired, NodeLost, CallEnded, JobStopped, JobResumed, BarrierState,
                 ArrivalsAnswered, ServerJoined, CandidateJoined, CandidateGone, BoundaryEnded>;

// The place where a job puts its events before it acts on them.
class JobLog {
 public:
  virtual ~JobLog() = default;
  // Returns once the event is durable. After an error the event has not happened. Unavailable: a
  // later attempt may succeed. FailedPrecondition: another scheduler has taken the job over, and
  // nothing of it may be decided here any more.
  virtual absl::Status Append(const JobEvent& event) = 0;
  // The facts that people are shown.
  struct State {
    uint64_t bytes = 0;
    bool is_failing = false;  // the last append had an error
  };
  virtual State state() const = 0;
  // Returns whether events of barriers have made the log long. If so, Shorten puts `barriers`,
  // which are Job::BarrierEvents, in the place of all of them.
  virtual bool IsLong() const = 0;
  virtual void Shorten(const std::vector<JobEvent>& barriers) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_EVENT_H_
