#ifndef BANDONEON_SCHEDULER_JOB_H_
#define BANDONEON_SCHEDULER_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cluster/control_plane.h"
#include "scheduler/barrier.h"
#include "scheduler/declarations.h"
#include "scheduler/history.h"
#include "scheduler/job_options.h"
#include "scheduler/membership_table.h"
#include "scheduler/roster.h"
#include "scheduler/waiting_calls.h"

namespace bdn {

// One job, from the first node to the last: everything the scheduler decides, as a state machine.
// Calls that wait return a call_id at once; its answer appears among the completions, exactly once,
// by the events that bring it, by its deadline or by the job's failure. Not thread-safe; no thread,
// no clock, no socket: time is an argument and never goes back.
class Job {
 public:
  enum class State { kWaiting, kRunning, kFailed, kDone };

  struct Completion {
    CallId call_id = 0;
    absl::Status status;         // of all calls
    JoinResult join;             // of Join
    DeclarationAnswer declared;  // of Declare
  };

  // What a node is told of. Members are null or OK until there is something to tell.
  struct View {
    std::shared_ptr<const Membership> membership;
    PlacementVersion placed;  // to servers: the latest
    absl::Status failure;
    bool done = false;   // all workers left in order
    size_t leaving = 0;  // to servers: how many of LeavingRanks
    bool left = false;   // the node itself
  };

  // Counts what may be new: in the views of all nodes, in those of the servers besides, and of the job
  // where it is in nobody's view.
  struct Revision {
    uint64_t all = 0;
    uint64_t servers = 0;
    uint64_t job = 0;

    bool operator==(const Revision&) const = default;
  };

  // REQUIRES: CheckJobOptions(options).ok().
  Job(JobOptions options, absl::Time now);

  // See ControlPlane for what each call means. `deadline` ends the wait with DeadlineExceeded,
  // which names who is missing.
  CallId Join(const JoinRequest& request, uint32_t version, absl::Time deadline, absl::Time now);
  CallId Declare(NodeId node, DeclarationPart part, absl::Time deadline, absl::Time now);
  CallId ArriveAtBarrier(NodeId node, const std::string& name, absl::Time deadline, absl::Time now);
  CallId Leave(NodeId node, const absl::Status& reason, absl::Time deadline, absl::Time now);
  // Nobody waits for this answer any more: it is Cancelled, and what the call stood for is
  // withdrawn (a node that was joining is forgotten).
  void Cancel(CallId call_id);

  absl::Status Retire(NodeId node, const std::vector<uint32_t>& tensors, absl::Time now);
  absl::Status AcknowledgePlacement(NodeId node, PlacementVersion version, absl::Time now);
  absl::Status Heartbeat(NodeId node, const NodeProgress& progress, absl::Time now);
  // Of the links that the node encodes for, by groups that are right; all that it has.
  absl::Status ReportQuality(NodeId node, const std::vector<QualityGroup>& groups, absl::Time now);
  // What a worker's program reported, of names that are right.
  absl::Status Report(NodeId node, const std::vector<ReportedValue>& values, absl::Time now);
  // The node's connection broke: it has a short while to be heard again.
  void ConnectionBroke(NodeId node, absl::Time now);
  // The scheduler itself was held up for so long, and heard nobody: leases have that time again.
  void WasHeldUp(absl::Duration pause);
  // The node is known to be gone. The job fails unless its work is done.
  void Lost(NodeId node, const std::string& how);

  // Ends the job for everybody, unless it is over already.
  void Stop(const std::string& why);

  // Lets time pass: ends what has a deadline or a lease that is over.
  void Advance(absl::Time now);
  // When Advance has something to do next.
  absl::Time NextDeadline() const;
  // Whether some node's lease may end.
  bool watches_leases() const {
    return failure_.ok() && table_.NextExpiry() < absl::InfiniteFuture();
  }

  std::vector<Completion> TakeCompletions();
  bool has_completions() const { return !completions_.empty(); }
  Revision revision() const { return revision_; }
  View ViewOf(NodeId node) const;
  // Workers that are leaving while others are not, in the order in which they said so. Grows.
  const std::vector<Rank>& LeavingRanks() const { return leaving_ranks_; }

  State state() const;
  // Every node has left or was found gone after the work was done.
  bool finished() const;
  const absl::Status& failure() const { return failure_; }
  // "worker 1": those without whom the job failed, who went first coming first: workers that were
  // leaving, then the node that was lost.
  std::vector<std::string> WhoWent() const;
  // Whom the job waits for; REQUIRES: state() is kWaiting.
  std::string MissingNodes() const { return table_.Missing(); }
  // What the node's open calls wait for: "barrier 'b': waiting for worker 1". Empty where it has none.
  std::string WaitsOf(NodeId node) const;
  // The same of one call; empty once it is answered.
  std::string WaitedForBy(CallId call_id) const;

  const JobConfig& config() const { return options_.config; }
  const JobOptions& options() const { return options_; }
  const MembershipTable& table() const { return table_; }
  const Declarations& declarations() const { return declarations_; }
  // Null where the options want none.
  const History* history() const { return history_.get(); }
  // What open calls wait for, each text once, some of them.
  std::vector<std::string> Waits() const;

 private:
  // Answers a call that does not wait, with OK or an error. Returns the call's number.
  CallId AnswerNow(const absl::Status& status);
  void Complete(CallId call_id, absl::Status status);
  void CompleteAll(const std::vector<CallId>& calls, const absl::Status& status);
  // REQUIRES: all nodes have joined, and it is a worker.
  RosterMember MemberOf(NodeId node) const;
  absl::Status CheckMember(NodeId node) const;
  absl::Status CheckWorker(NodeId node, const char* call) const;
  static absl::Status CheckEndpoints(const JoinRequest& request);
  absl::Status CheckJoin(const JoinRequest& request, uint32_t version) const;
  absl::Status CheckTakesMore() const;

  CallId LeaveAsServer(NodeId node);
  CallId LeaveAsWorker(const RosterMember& member, absl::Time deadline);
  void StartIfFull(absl::Time now);
  // Answers a declaration's call if there is something to tell.
  void AnswerDeclaration(CallId call_id);
  // Answers every waiting declaration whose batch changed, if there is something to tell.
  void AnswerChangedDeclarations();
  void EndBarrier(const std::string& name, const absl::Status& status);
  // Ends the barrier if this worker, who is leaving, has not come to it.
  void AbortIfLeaving(const std::string& name, const RosterMember& member);
  void EndWork();
  void ChangeForAll() { ++revision_.all; }
  void ChangeForServers() { ++revision_.servers; }
  void Fail(absl::Status failure);
  // What a call's deadline or cancellation undoes, and what it was waiting for.
  void Withdraw(const WaitingCall& call);
  // The call's deadline has come, or it is cancelled.
  void EndWait(CallId call_id, const absl::Status& status);
  std::string WaitedFor(const WaitingCall& call) const;
  void ExpireCalls(absl::Time now);
  void ExpireLeases(absl::Time now);

  // Keeps it for who looks, as of the latest time that was told.
  void Happened(const char* kind, std::string text);

  const JobOptions options_;
  absl::Time now_;
  const std::unique_ptr<History> history_;  // may be null
  absl::Time join_deadline_;
  int workers_joining_ = 0;

  MembershipTable table_;
  Roster roster_;  // whom barriers, declarations and leaving wait for; empty until all have joined
  absl::Status failure_;
  const NodeInfo* lost_ = nullptr;                  // of the table: who failed the job
  bool work_done_ = false;                          // all workers are leaving
  std::shared_ptr<const Membership> servers_view_;  // what workers are told
  std::shared_ptr<const Membership> last_view_;     // for servers, once the work is done
  Revision revision_;

  Declarations declarations_;
  std::map<std::string, Barrier> barriers_;
  Barrier leaving_{Roster()};
  std::vector<Rank> leaving_ranks_;

  WaitingCalls calls_;
  std::vector<Completion> completions_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_H_
