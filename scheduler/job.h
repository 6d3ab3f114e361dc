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
#include "common/telemetry/suspects.h"
#include "scheduler/barrier.h"
#include "scheduler/barriers.h"
#include "scheduler/candidates.h"
#include "scheduler/declarations.h"
#include "scheduler/history.h"
#include "scheduler/job_event.h"
#include "scheduler/job_options.h"
#include "scheduler/lost_servers.h"
#include "scheduler/membership_table.h"
#include "scheduler/roster.h"
#include "scheduler/waiting_calls.h"

namespace bdn {

// One job, from the first node to the last: a state machine with everything that the scheduler
// decides. Calls that wait return a call_id at once; the answer appears among the completions
// exactly once: by the events that bring it, by its deadline or by the job's failure. Not
// thread-safe. It has no thread, clock or socket: time is an argument and never goes back.
//
// With a log every event is in that before the job acts on it, from the moment at which all nodes
// have joined. A call whose event cannot be logged is answered Unavailable, and what time has
// decided is decided again a second later.
class Job {
 public:
  // The state of the job. kDone: all workers have left regularly.
  enum class State { kWaiting, kRunning, kFailed, kDone };

  // The answer to one call.
  struct Completion {
    CallId call_id = 0;
    absl::Status status;         // of all calls
    JoinResult join;             // of Join
    DeclarationAnswer declared;  // of Declare
    Met met;                     // of ArriveAtBarrier
  };

  // The facts that a node is told. Members are null or OK until there is something to tell.
  struct View {
    std::shared_ptr<const Membership> membership;
    PlacementVersion placed;  // to servers: the latest placement
    absl::Status failure;
    bool done = false;   // all workers left regularly
    size_t leaving = 0;  // to servers: how many of LeavingRanks they are to know
    bool left = false;   // the node itself has left
    int candidates = 0;  // to workers: so many wait at a boundary
  };

  // Counters of changes: in the views of all nodes, in those of the servers only, and of the job
  // where no view shows it.
  struct Revision {
    uint64_t all = 0;
    uint64_t servers = 0;
    uint64_t job = 0;

    bool operator==(const Revision&) const = default;
  };

  // Borrows `log`, which may be null. REQUIRES: CheckJobOptions(options).ok().
  Job(JobOptions options, absl::Time now, JobLog* log = nullptr);
  // Takes the job up where another scheduler left it, after these events. Its calls have to come
  // again. To be called first, if at all, with options that have what JobBegun tells.
  void Resume(const std::vector<JobEvent>& events, absl::Time now);
  // Returns the events of the open barriers, and of the answers that are kept, which stand for all
  // events of barriers before.
  std::vector<JobEvent> BarrierEvents() const;

  // The calls of ControlPlane, which describes them. Where replay_steps is not 0 a server may join
  // a job that runs, and waits until a rank of a server is vacant; where min_workers lets ranks be
  // vacant a worker may, likewise, as a candidate. `deadline` ends the wait with DeadlineExceeded,
  // which names the nodes that are missing, or those that have the ranks.
  CallId Join(const JoinRequest& request, uint32_t version, absl::Time deadline, absl::Time now);
  CallId Declare(NodeId node, DeclarationPart part, absl::Time deadline, absl::Time now);
  // `number` tells this arrival of the node from its others; the answers to those below
  // `first_open` are no longer kept. 0: nothing is kept, and a call that comes again is another.
  struct Arrival {
    std::string barrier;
    uint64_t number = 0;
    uint64_t first_open = 0;
  };
  CallId ArriveAtBarrier(NodeId node, const Arrival& arrival, absl::Time deadline, absl::Time now);
  CallId Leave(NodeId node, const absl::Status& reason, absl::Time deadline, absl::Time now);
  // Takes a server out that is to go, where others can answer for its keys; else FailedPrecondition
  // says why not.
  CallId TryToLeave(NodeId node, const absl::Status& reason, absl::Time now);
  // Gives up a call whose answer nobody waits for any more: the answer is Cancelled, and the call's
  // effect is withdrawn (a node that was joining is forgotten).
  void Cancel(CallId call_id);

  absl::Status Retire(NodeId node, const std::vector<uint32_t>& tensors, absl::Time now);
  absl::Status AcknowledgePlacement(NodeId node, PlacementVersion version, absl::Time now);
  absl::Status Heartbeat(NodeId node, const NodeProgress& progress, absl::Time now);
  // Takes all quality figures of the links that the node encodes for. The groups have been checked.
  absl::Status ReportQuality(NodeId node, const std::vector<QualityGroup>& groups, absl::Time now);
  // Takes the ranks of workers for which rounds at a server wait, or of servers that do not answer
  // a worker. A worker for which rounds have waited for stuck-timeout is taken out of the job, if
  // that may go on without it. Where a worker has had no answer of a server for link-timeout, one
  // of the two is taken out: the server if most workers have none, else the worker if the job may
  // lose it, else the server.
  absl::Status ReportWaits(NodeId node, const std::vector<NodeWait>& waits, absl::Time now);
  // Takes values that a worker's program reported. Their names have been checked.
  absl::Status Report(NodeId node, const std::vector<ReportedValue>& values, absl::Time now);
  // Notes that the node's connection broke: the node has a short while to be heard again.
  void ConnectionBroke(NodeId node, absl::Time now);
  // Lengthens all leases by the time that the scheduler itself was held up and could hear no node.
  void WasHeldUp(absl::Duration pause);
  // Notes that the node is known to be gone. The job goes on without a worker while min_workers are
  // left, and without a server where replay_steps is not 0 and another server is there, or waits to
  // join, or may still come because the job is logged; else it fails, unless its work is done.
  void Lost(NodeId node, const std::string& how);

  // Ends the job for all nodes, unless it is over already.
  void Stop(const std::string& why);

  // Lets time pass: ends the waits and nodes whose deadline or lease is over.
  void Advance(absl::Time now);
  // Returns when Advance has something to do next.
  absl::Time NextDeadline() const;
  // Returns whether some node's lease may end.
  bool watches_leases() const {
    return failure_.ok() && table_.NextExpiry() < absl::InfiniteFuture();
  }

  std::vector<Completion> TakeCompletions();
  bool has_completions() const { return !completions_.empty(); }
  Revision revision() const { return revision_; }
  View ViewOf(NodeId node) const;
  // The workers that are leaving while others are not, in the order in which they said so. Only
  // grows.
  const std::vector<Rank>& LeavingRanks() const { return leaving_ranks_; }

  State state() const;
  // Returns whether every node has left, or was found gone after the work was done.
  bool finished() const;
  const absl::Status& failure() const { return failure_; }
  // Returns null where the job is not logged.
  const JobLog* log() const { return log_; }
  // Returns the log's error, not OK once another scheduler has taken the job over.
  const absl::Status& superseded() const { return superseded_; }
  // Returns the nodes without which the job failed ("worker 1"), in the order in which they went:
  // first the workers that were leaving, then the node that was lost.
  std::vector<std::string> WhoWent() const;
  // Returns the nodes that the job waits for. REQUIRES: state() is kWaiting.
  std::string MissingNodes() const { return table_.Missing(); }
  // Returns what nodes wait for that ask to join the job now. REQUIRES: state() is kRunning.
  std::string WaitToJoin() const;
  // Returns what the node's open calls wait for: "barrier 'b': waiting for worker 1". Empty where
  // it has none.
  std::string WaitsOf(NodeId node) const;
  // Returns the same of one call; empty once it is answered.
  std::string WaitedForBy(CallId call_id) const;

  const JobConfig& config() const { return options_.config; }
  const JobOptions& options() const { return options_; }
  const MembershipTable& table() const { return table_; }
  const Declarations& declarations() const { return declarations_; }
  // Returns the keys for which a server answers, summed up. Slots that have moved count for a
  // sixteenth of their home's keys each.
  Placer::Load LoadOf(NodeId server) const { return lost_servers_.LoadOf(server); }
  // Returns what has become of the nodes since the job began, by the epochs that began so: "with 1
  // of 2 servers: without server 1, which ...". The latest few only.
  const std::map<Epoch, std::string>& changes() const { return changes_; }
  // Null where the options ask for no history.
  const History* history() const { return history_.get(); }
  // Returns the verdicts about nodes that slow the job. None where nodes send no heartbeats.
  const SuspectWatch& watch() const { return watch_; }
  // Returns what open calls wait for, each text once, but not more than a few.
  std::vector<std::string> Waits() const;

 private:
  // Answers a call that does not wait, with OK or an error. Returns the call's number.
  CallId AnswerNow(const absl::Status& status);
  // Answers a call that waits.
  void Complete(CallId call_id, absl::Status status);
  void CompleteAll(const std::vector<CallId>& calls, const absl::Status& status);
  // Returns the member of a worker, or what a candidate is to be. REQUIRES: all nodes have joined,
  // and the node is a worker.
  RosterMember MemberOf(NodeId node) const;
  // Checks that the job goes on and the node is part of it.
  absl::Status CheckMember(NodeId node) const;
  // Checks likewise, and that the node is a worker; `call` names the call for the error.
  absl::Status CheckWorker(NodeId node, const char* call) const;
  static absl::Status CheckEndpoints(const JoinRequest& request);
  absl::Status CheckJoin(const JoinRequest& request, uint32_t version) const;
  absl::Status CheckTakesMore(Role role) const;

  // ---- workers that join a job that runs: job_candidates.cc

  // Returns whether workers may take vacant ranks.
  bool MayTakeWorkers() const { return options_.config.MayHaveVacantRanks(); }
  bool IsCandidate(NodeId node) const;
  // Returns "worker 1 (node 5, host:pid)", or "host 1 (...)".
  std::string DescribeWorker(NodeId node) const;
  // Makes those workers candidates that wait for a rank which is vacant.
  void TakeCandidates();
  // Returns whether one of them waits for a rank which is vacant.
  bool MayTakeCandidate() const;
  absl::Status TakeCandidate(const JoinRequest& request);
  void OnCandidateJoined(const CandidateJoined& event, absl::Time now);
  // Records and does that a candidate is gone; `how` continues "worker 1 ...".
  absl::Status LoseCandidate(NodeId node, const std::string& how);
  void OnCandidateGone(NodeId node, const std::string& how);
  CallId ArriveAsCandidate(NodeId node, const Arrival& arrival, absl::Time deadline);
  // Answers a late worker's part of a declaration, if the batch of all has nothing to do with it;
  // 0: the part, which may be another one now, is for the batch.
  CallId DeclareLate(NodeId node, DeclarationPart* part);
  // Ends a barrier at which all workers are: takes in the candidates that are there, if it is a
  // boundary.
  void OnBarrierFull(const std::string& name);
  // Tries that again where it could not be logged, or where the candidates have gone since.
  void EndFullBoundaries();
  bool HasFullBoundary() const;
  void OnBoundaryEnded(const BoundaryEnded& event, absl::Time now);
  // Answers the newcomers that all servers let in.
  void AnswerNewcomers();
  absl::Status AcknowledgeEpoch(NodeId node, Epoch epoch, absl::Time now);
  std::string WaitOfCandidate(const WaitingCall& call) const;
  std::string WaitForRank() const;

  CallId LeaveAsServer(NodeId node);
  CallId LeaveAsWorker(const RosterMember& member, absl::Time deadline);
  void StartIfFull(absl::Time now);
  void OnAllJoined();
  // Checks that the worker is of the ranks that the barrier's name tells.
  absl::Status CheckBarrierRanks(NodeId node, const std::string& name) const;
  // Answers a declaration's call if there is something to tell.
  void AnswerDeclaration(CallId call_id);
  // Answers every waiting declaration whose batch changed, if there is something to tell.
  void AnswerChangedDeclarations();
  // Puts an event into the log, if there is one and all nodes have joined. After an error the
  // caller must not act on the event.
  absl::Status Record(const JobEvent& event);
  void Replay(const JobEvent& event, absl::Time now);
  CallId JoinAgain(const MembershipTable::Member& member, const JoinRequest& request,
                   absl::Time deadline, absl::Time now);
  void FillJoined(const NodeInfo& node, JoinResult* joined) const;
  // `met` is the answer where the status is OK.
  void EndBarrier(const std::string& name, const absl::Status& status, const Met& met = {});
  // Ends the barrier if this worker, which is leaving, has not come to it.
  void AbortIfLeaving(const std::string& name, const RosterMember& member);
  // Makes what workers are told of the membership.
  void MakeWorkersView();
  // Ends the job regularly: all workers are leaving.
  void EndWork();
  void ChangeForAll() { ++revision_.all; }
  void ChangeForServers() { ++revision_.servers; }
  void Fail(absl::Status failure);
  // Undoes the effect of a call that has waited in vain: its deadline came, or it was cancelled.
  void Withdraw(const WaitingCall& call);
  // Ends the wait of a call whose deadline has come, or which is cancelled.
  void EndWait(CallId call_id, const absl::Status& status);
  std::string WaitedFor(const WaitingCall& call) const;
  void ExpireCalls(absl::Time now);

  // ---- lost nodes, in job_losses.cc

  void ExpireLeases(absl::Time now);
  // Records and does what Lost tells. An error is that of the log.
  absl::Status Lose(NodeId node, const std::string& how);
  // As Lost, for an event that is in the log.
  void TakeOut(NodeId node, const std::string& how);
  // Returns whether the job may go on without this node.
  bool MayGoOnWithout(const NodeInfo& node) const;
  // Takes a worker out of the job: whatever waited for it waits no more. The next epoch begins.
  // `how` continues "worker 1 ...".
  void GoOnWithout(const RosterMember& gone, const std::string& how);
  // Takes a server out of the job: others answer for its keys. REQUIRES: MayGoOnWithout(it).
  void GoOnWithoutServer(const NodeInfo& gone, const std::string& how);
  // Acts on an event that is in the log.
  void OnServerJoined(const ServerJoined& event, absl::Time now);
  // Tells everybody of the membership, which has other servers.
  void OnServersChanged();
  // Ends the job because all its servers are lost, and none has come.
  void FailWithoutServers();
  void OnRoundsWait(const NodeInfo& server, const std::vector<NodeWait>& waits);
  void OnUnheard(const NodeInfo& worker, const std::vector<NodeWait>& servers);
  // Fails the job because of a node; `how` continues "worker 1 ...".
  void FailBy(NodeId node, const std::string& how);
  CallId AwaitVacancy(const JoinRequest& request, absl::Time deadline, absl::Time now);
  // Lets this one join that waits, in the place of a server that is lost (its node and `how`), or
  // of none.
  absl::Status AdmitServer(uint64_t number, NodeId lost, const std::string& how);
  // Lets those servers join that wait for a rank which is vacant.
  void AdmitServers();
  // Answers all nodes that wait to join: the job takes no more.
  void DismissWaiting();

  // Returns whether a node takes part in steps that are to come.
  bool TakesPart(NodeId node) const;
  // Tells people the verdicts that have begun or ended.
  void TellSuspects();
  // Adds an event to the history, if there is one, at the latest time that was told.
  void Happened(const char* kind, std::string text);
  // Notes how the job goes on in the epoch that has begun.
  void GoesOn(std::string text);

  const JobOptions options_;
  JobLog* log_;  // null where there is none, and while events are replayed
  const bool is_logged_;
  // Until then nothing is decided by time, because the log has refused that.
  absl::Time deferred_until_ = absl::InfinitePast();
  absl::Status superseded_;
  absl::Time now_;
  absl::Time resumed_ = absl::InfinitePast();  // another scheduler had the job before
  const std::unique_ptr<History> history_;     // may be null
  SuspectWatch watch_;
  // Infinite, where another job follows, until a worker joins.
  absl::Time join_deadline_;
  int workers_joining_ = 0;

  MembershipTable table_;
  // The workers for which barriers, declarations and leaving wait; empty until all have joined.
  Roster roster_;
  absl::Status failure_;
  const NodeInfo* lost_ = nullptr;  // the node whose loss failed the job; of the table
  bool work_done_ = false;          // all workers are leaving
  std::shared_ptr<const Membership> workers_view_;  // the membership that workers are told
  // The membership that servers are told once the work is done.
  std::shared_ptr<const Membership> last_view_;
  Revision revision_;
  std::map<Epoch, std::string> changes_;

  Declarations declarations_;
  LostServers lost_servers_;
  Barriers barriers_;
  Barrier leaving_{Roster()};
  std::vector<Rank> leaving_ranks_;

  Candidates candidates_;
  // By server: the last epoch whose workers it lets in, as it said, or in which it joined.
  std::map<NodeId, Epoch> let_in_;
  bool is_replaying_ = false;

  WaitingCalls calls_;
  std::vector<Completion> completions_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_H_
