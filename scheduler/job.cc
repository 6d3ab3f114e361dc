#include "scheduler/job.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// Only open barriers count: a name costs nothing once its barrier has ended.
constexpr size_t kMaxBarriers = 4096;
// The most texts of waits that the history shows.
constexpr size_t kMostWaits = 8;
// The most changes of the membership whose texts are kept.
constexpr size_t kMostChanges = 64;
// The interval at which a decision is tried again that could not be logged.
constexpr absl::Duration kLogRetry = absl::Seconds(1);

}  // namespace

Job::Job(JobOptions options, absl::Time now, JobLog* log)
    : options_(std::move(options)),
      log_(log),
      is_logged_(log != nullptr),
      now_(now),
      history_(options_.keeps_history ? std::make_unique<History>(options_.config.num_workers +
                                                                  options_.config.num_servers)
                                      : nullptr),
      watch_(options_.config.heartbeat_interval, [this](NodeId node) { return TakesPart(node); }),
      join_deadline_(options_.is_followed ? absl::InfiniteFuture() : now + options_.join_timeout),
      table_(options_.config.num_workers, options_.config.NumFirstWorkers(),
             options_.config.num_servers,
             options_.has_leases ? options_.config.lease_timeout : absl::InfiniteDuration()),
      declarations_(options_),
      lost_servers_(options_, is_logged_, declarations_, &table_) {}

// ---- the log

absl::Status Job::Record(const JobEvent& event) {
  if (log_ == nullptr || !table_.frozen()) return absl::OkStatus();
  // All events before this one have been acted on, so the barriers are as those left them.
  if (log_->IsLong()) log_->Shorten(BarrierEvents());
  absl::Status status = log_->Append(event);
  if (status.ok()) return status;
  if (absl::IsFailedPrecondition(status) && superseded_.ok()) {
    superseded_ = status;
    ++revision_.job;
  }
  deferred_until_ = now_ + kLogRetry;
  // The caller is to come again, maybe to another scheduler.
  return Unavailable("%s", status.message());
}

void Job::Resume(const std::vector<JobEvent>& events, absl::Time now) {
  JobLog* const log = std::exchange(log_, nullptr);
  is_replaying_ = true;
  for (const JobEvent& event : events) Replay(event, now);
  Replay(JobResumed(), now);
  is_replaying_ = false;
  completions_.clear();
  // Whoever has left may not have the answer, and asks again while its lease lasts.
  if (work_done_) table_.TakeBackLeft();
  table_.RenewLeases(now);
  lost_servers_.RenewDeadline(now);
  resumed_ = now;
  log_ = log;
}

void Job::Replay(const JobEvent& event, absl::Time now) {
  constexpr absl::Time kNever = absl::InfiniteFuture();
  if (const auto* begun = std::get_if<JobBegun>(&event)) {
    table_.Restore(begun->membership, begun->join_ids, now);
    OnAllJoined();
  } else if (const auto* declared = std::get_if<PartDeclared>(&event)) {
    Declare(declared->node, declared->part, kNever, now);
  } else if (const auto* reached = std::get_if<BarrierReached>(&event)) {
    ArriveAtBarrier(reached->node, {reached->barrier, reached->number}, kNever, now);
  } else if (const auto* left = std::get_if<NodeLeft>(&event)) {
    Leave(left->node, left->reason, kNever, now);
  } else if (const auto* installed = std::get_if<PlacementInstalled>(&event)) {
    (void)AcknowledgePlacement(installed->node, installed->version, now);
  } else if (const auto* retired = std::get_if<TensorsRetired>(&event)) {
    (void)Retire(retired->node, retired->tensors, now);
  } else if (const auto* lost = std::get_if<NodeLost>(&event)) {
    TakeOut(lost->node, lost->how);
  } else if (const auto* joined = std::get_if<ServerJoined>(&event)) {
    const bool may_join = lost_servers_.may_lose() && state() == State::kRunning;
    if (may_join && table_.CanAdmit(joined->server, joined->join_id, joined->lost)) {
      OnServerJoined(*joined, now);
    }
  } else if (const auto* ended = std::get_if<CallEnded>(&event)) {
    const std::vector<CallId> waiting = calls_.Of(ended->subject, ended->node);
    for (const CallId call : waiting) EndWait(call, Cancelled("the call was given up"));
    // An arrival may be known by BarrierState, without its call.
    if (waiting.empty() && ended->subject.kind == WaitSubject::Kind::kBarrier &&
        CheckWorker(ended->node, "barrier").ok()) {
      Withdraw({ended->subject, ended->node, kNever});
    }
  } else if (const auto* stopped = std::get_if<JobStopped>(&event)) {
    Stop(stopped->why);
  } else if (std::get_if<JobResumed>(&event) != nullptr) {
    calls_.Clear();
    lost_servers_.ForgetWaiting();
    candidates_.ForgetWaiting();
  } else if (const auto* candidate = std::get_if<CandidateJoined>(&event)) {
    const bool may_join = MayTakeWorkers() && state() == State::kRunning;
    if (may_join && table_.CanAddCandidate(candidate->worker, candidate->join_id)) {
      OnCandidateJoined(*candidate, now);
    }
  } else if (const auto* gone = std::get_if<CandidateGone>(&event)) {
    if (IsCandidate(gone->node)) OnCandidateGone(gone->node, "");
  } else if (const auto* ended = std::get_if<BoundaryEnded>(&event)) {
    if (state() == State::kRunning) OnBoundaryEnded(*ended, now);
  } else if (const auto* state = std::get_if<BarrierState>(&event)) {
    std::vector<RosterMember> members;
    for (const auto& [node, numbers] : state->arrivals) {
      if (!CheckWorker(node, "barrier").ok()) continue;
      if (!IsCandidate(node)) {
        members.push_back(MemberOf(node));
        continue;
      }
      candidates_.Arrive(state->barrier, node, 0);
      for (const uint64_t number : numbers) candidates_.Arrive(state->barrier, node, number);
    }
    if (!members.empty()) barriers_.Restore(*state, roster_, members);
  } else if (const auto* answered = std::get_if<ArrivalsAnswered>(&event)) {
    barriers_.Restore(*answered);
  }
}

// ---- calls

CallId Job::AnswerNow(const absl::Status& status) {
  const CallId call_id = calls_.NewId();
  completions_.push_back({call_id, status, {}, {}, {}});
  return call_id;
}

void Job::Complete(CallId call_id, absl::Status status) {
  const WaitingCall call = calls_.Take(call_id);
  Completion completion{call_id, std::move(status), {}, {}, {}};
  if (call.subject.kind == WaitSubject::Kind::kBarrier) {
    completion.met.vacant = table_.membership()->vacant;
  }
  if (completion.status.ok() && call.subject.kind == WaitSubject::Kind::kJoin) {
    FillJoined(table_.Find(call.node)->info, &completion.join);
  }
  completions_.push_back(std::move(completion));
}

void Job::FillJoined(const NodeInfo& node, JoinResult* joined) const {
  *joined = {.node = node.id,
             .rank = node.rank,
             .config = options_.config,
             .membership = ViewOf(node.id).membership,
             .data_secret = options_.data_secret,
             .processes = table_.ProcessesOfWorkers(),
             .is_candidate = IsCandidate(node.id)};
}

void Job::CompleteAll(const std::vector<CallId>& calls, const absl::Status& status) {
  for (const CallId call_id : calls) Complete(call_id, status);
}

std::vector<Job::Completion> Job::TakeCompletions() { return std::exchange(completions_, {}); }

void Job::Withdraw(const WaitingCall& call) {
  // The node asked twice and has given up one call: the other still waits.
  if (calls_.Has(call.subject, call.node)) return;
  switch (call.subject.kind) {
    case WaitSubject::Kind::kJoin:
      if (table_.Find(call.node)->info.role == Role::kWorker && options_.is_followed &&
          --workers_joining_ == 0) {
        join_deadline_ = absl::InfiniteFuture();
      }
      Happened("lost",
               MembershipTable::Describe(table_.Find(call.node)->info) + " gave up joining");
      table_.Remove(call.node);
      return;
    case WaitSubject::Kind::kDeclare:  // A later call with the same list goes on with the batch.
      return;
    case WaitSubject::Kind::kVacancy:
      lost_servers_.GiveUp(call.subject.batch);
      candidates_.GiveUp(call.subject.batch);
      return;
    case WaitSubject::Kind::kBarrier: {
      const std::string& name = call.subject.barrier;
      if (IsCandidate(call.node)) {
        candidates_.Withdraw(call.node);
        ChangeForAll();
        return EndFullBoundaries();
      }
      // A newcomer's answer waits for servers, and it is at no barrier.
      if (candidates_.IsEntering(call.node)) return;
      if (!barriers_.Has(name)) return;  // the barrier has ended meanwhile
      const RosterMember member = MemberOf(call.node);
      barriers_.Withdraw(name, member);
      if (barriers_.Has(name) && leaving_.Has(member)) AbortIfLeaving(name, member);
      return;
    }
    case WaitSubject::Kind::kLeave:
      // A worker that gives up waiting to leave counts as lost, which fails the job for the others.
      leaving_.Withdraw(MemberOf(call.node));
      TakeOut(call.node, "gave up waiting to leave");
      return;
  }
}

std::string Job::WaitedFor(const WaitingCall& call) const {
  switch (call.subject.kind) {
    case WaitSubject::Kind::kJoin:
      return "waiting for " + table_.Missing();
    case WaitSubject::Kind::kBarrier:
      if (IsCandidate(call.node) || candidates_.IsEntering(call.node)) return WaitOfCandidate(call);
      return absl::StrFormat("barrier '%s': waiting for %s", call.subject.barrier,
                             barriers_.Missing(call.subject.barrier));
    case WaitSubject::Kind::kLeave:
      return "waiting to leave with " + leaving_.Missing();
    case WaitSubject::Kind::kDeclare:
      return declarations_.WaitedFor(call.subject.batch);
    case WaitSubject::Kind::kVacancy:
      return candidates_.IsWaiting(call.subject.batch) ? WaitForRank() : lost_servers_.Wait();
  }
  return "";
}

std::string Job::WaitsOf(NodeId node) const {
  std::string text;
  for (const CallId call_id : calls_.Of(node)) {
    if (!text.empty()) text += "; ";
    text += WaitedFor(*calls_.Find(call_id));
  }
  return text;
}

std::string Job::WaitedForBy(CallId call_id) const {
  const WaitingCall* call = calls_.Find(call_id);
  return call == nullptr ? "" : WaitedFor(*call);
}

void Job::Cancel(CallId call_id) {
  const WaitingCall* call = calls_.Find(call_id);
  if (call == nullptr) return;
  const absl::Status given_up = Cancelled("the call was given up");
  // The node makes the call again over another connection, or its lease ends.
  if (log_ != nullptr && call->subject.kind == WaitSubject::Kind::kLeave) {
    return Complete(call_id, given_up);
  }
  EndWait(call_id, given_up);
}

void Job::EndWait(CallId call_id, const absl::Status& status) {
  const WaitingCall call = *calls_.Find(call_id);
  // While another call of the node waits for the same, nothing is withdrawn. A server that waits
  // for a vacancy is none of the job's nodes, and the log does not know it.
  const bool is_node = call.subject.kind != WaitSubject::Kind::kVacancy;
  if (is_node && calls_.Of(call.subject, call.node).size() == 1) {
    const absl::Status logged = Record(CallEnded{call.node, call.subject});
    // A node that waits to leave goes on waiting. Any other wait is over all the same, because its
    // caller is gone; the next scheduler then takes the node for one that has come.
    if (!logged.ok() && call.subject.kind == WaitSubject::Kind::kLeave) {
      return Complete(call_id, logged);
    }
  }
  // The answer is given first: Withdraw may end the job, and would answer the call once more.
  Complete(call_id, status);
  Withdraw(call);
}

// ---- checks

RosterMember Job::MemberOf(NodeId node) const {
  const NodeInfo& info = table_.Find(node)->info;
  const auto member = roster_.find({info.rank, node});
  if (member != roster_.end()) return *member;
  const std::vector<int> processes = table_.ProcessesOfWorkers();
  const Rank first = std::accumulate(processes.begin(), processes.begin() + info.rank, 0);
  return {info.rank, node, first, info.processes};
}

absl::Status Job::CheckMember(NodeId node) const {
  if (!failure_.ok()) return failure_;
  if (!table_.frozen()) return FailedPrecondition("not all nodes have joined yet");
  const MembershipTable::Member* member = table_.Find(node);
  if (member == nullptr && table_.WasForgotten(node)) {
    return Evicted("the job goes on without node %d, which waited to be taken in", node);
  }
  if (member == nullptr) return NotFound("node %d is not of this job", node);
  if (member->left) return FailedPrecondition("node %d has left", node);
  if (!member->evicted.ok()) return member->evicted;
  if (member->is_candidate && work_done_) {
    return Unneeded("job '%s' is done and takes no more", options_.config.job_id);
  }
  return absl::OkStatus();
}

absl::Status Job::CheckWorker(NodeId node, const char* call) const {
  BDN_RETURN_IF_ERROR(CheckMember(node));
  if (table_.Find(node)->info.role == Role::kWorker) return absl::OkStatus();
  return InvalidArgument("%s: only workers do, node %d is a server", call, node);
}

// Checks the form of endpoints only: their meaning is left to the transports of the processes that
// connect.
absl::Status Job::CheckEndpoints(const JoinRequest& request) {
  const std::vector<Endpoint>& endpoints = request.endpoints;
  if (request.role == Role::kServer && endpoints.empty()) {
    return InvalidArgument("%s joined as a server without an endpoint", request.host);
  }
  if (endpoints.size() > kMostEndpoints) {
    return InvalidArgument("%s joined with %d endpoints, at most %d", request.host,
                           endpoints.size(), kMostEndpoints);
  }
  for (const Endpoint& each : endpoints) {
    if (each.scheme.empty() || each.address.empty()) {
      return InvalidArgument("%s joined with an endpoint without a scheme or an address",
                             request.host);
    }
    for (const std::string* text : {&each.scheme, &each.address, &each.bound}) {
      if (text->size() <= kMostEndpointBytes) continue;
      return InvalidArgument("%s joined with an endpoint of %d bytes, at most %d", request.host,
                             text->size(), kMostEndpointBytes);
    }
    if (each.security == LinkSecurity::kEncrypted && request.public_key.empty()) {
      return InvalidArgument("%s listens encrypted, but joined without a public key", request.host);
    }
  }
  return absl::OkStatus();
}

absl::Status Job::CheckJoin(const JoinRequest& request, uint32_t version) const {
  const JobConfig& config = options_.config;
  // The version comes first: the fields of another version may mean something else.
  if (version != kControlVersion) {
    return FailedPrecondition("the scheduler speaks control version %d, %s speaks %d",
                              kControlVersion, request.host, version);
  }
  BDN_RETURN_IF_ERROR(CheckText(options_.limits, "job id", request.job_id));
  BDN_RETURN_IF_ERROR(CheckText(options_.limits, "host", request.host));
  if (!request.job_id.empty() && request.job_id != config.job_id) {
    return FailedPrecondition("this scheduler runs job '%s', %s wants job '%s'", config.job_id,
                              request.host, request.job_id);
  }
  BDN_RETURN_IF_ERROR(CheckEndpoints(request));
  return CheckTakesMore(request.role);
}

absl::Status Job::CheckTakesMore(Role role) const {
  const std::string& id = options_.config.job_id;
  // A server may be to take the place of one that is lost.
  if (role == Role::kServer && lost_servers_.may_lose() && state() == State::kRunning) {
    return absl::OkStatus();
  }
  // A worker may be to take a vacant rank. Where another job follows, it is meant for that unless a
  // rank is vacant.
  const bool may_wait = role == Role::kWorker && MayTakeWorkers() && state() == State::kRunning;
  if (may_wait && (!options_.is_followed || table_.VacantWorkerRank(-1) >= 0)) {
    return absl::OkStatus();
  }
  // Unavailable, because the caller is to come again for the next job.
  if (options_.is_followed && state() != State::kWaiting) {
    return Unavailable("job '%s' has all its nodes; the next one begins when it has ended", id);
  }
  if (!failure_.ok()) return failure_;
  // A server that was started again while the job ended is late, and not wrong.
  if (role == Role::kServer && lost_servers_.may_lose() && state() == State::kDone) {
    return Unneeded("job '%s' is done and takes no more", id);
  }
  if (table_.frozen()) {
    return FailedPrecondition("job '%s' has all its nodes and takes no more", id);
  }
  return absl::OkStatus();
}

// ---- joining

CallId Job::Join(const JoinRequest& request, uint32_t version, absl::Time deadline,
                 absl::Time now) {
  // Time first: a deadline that is over must not be beaten by the call that comes after it.
  Advance(now);
  if (const auto* member = table_.FindByJoinId(request.join_id); member != nullptr) {
    return JoinAgain(*member, request, deadline, now);
  }
  const absl::Status status = CheckJoin(request, version);
  if (!status.ok()) return AnswerNow(status);
  if (table_.frozen() || table_.ComesLater(request)) return AwaitVacancy(request, deadline, now);
  const auto node = table_.Add(request, now);
  if (!node.ok()) return AnswerNow(node.status());
  Happened("joined", MembershipTable::Describe(table_.Find(*node)->info));
  const CallId call_id = calls_.Add({{WaitSubject::Kind::kJoin}, *node, deadline});
  if (request.role == Role::kWorker && options_.is_followed && workers_joining_++ == 0) {
    join_deadline_ = now + options_.join_timeout;
  }
  StartIfFull(now);
  return call_id;
}

CallId Job::JoinAgain(const MembershipTable::Member& member, const JoinRequest& request,
                      absl::Time deadline, absl::Time now) {
  const NodeInfo& node = member.info;
  // Whoever has the answer has no reason to ask again: this would be another node.
  if (member.has_called || node.role != request.role || node.public_key != request.public_key ||
      node.host != request.host) {
    return AnswerNow(AlreadyExists("%s joins with the number of %s, which has joined", request.host,
                                   MembershipTable::Describe(node)));
  }
  if (!table_.frozen()) return calls_.Add({{WaitSubject::Kind::kJoin}, node.id, deadline});
  table_.Heard(node.id, now);  // Its lease runs, and it has sent no heartbeat yet.
  const CallId call_id = AnswerNow(CheckMember(node.id));
  if (completions_.back().status.ok()) FillJoined(node, &completions_.back().join);
  return call_id;
}

void Job::StartIfFull(absl::Time now) {
  if (!table_.full()) return;
  table_.Freeze(now);
  JobBegun begun{options_.config, options_.limits, options_.data_secret, table_.membership(), {}};
  for (const auto& [id, member] : table_.members()) begun.join_ids[id] = member.join_id;
  const absl::Status logged = Record(begun);
  OnAllJoined();
  if (!logged.ok()) return Fail(Aborted("the job cannot begin: %s", logged.message()));
  CompleteAll(calls_.WaitingFor({WaitSubject::Kind::kJoin}), absl::OkStatus());
  TakeCandidates();
}

void Job::OnAllJoined() {
  const Membership& all = *table_.membership();
  MakeWorkersView();
  roster_ = RosterOf(all);
  leaving_ = Barrier(roster_);
  for (const NodeInfo& server : all.servers) let_in_[server.id] = all.epoch;
  declarations_.Begin(table_.membership());
  ChangeForAll();
  Happened("all joined",
           absl::StrFormat("%d worker(s), %d server(s)", all.workers.size(), all.servers.size()));
}

void Job::MakeWorkersView() {
  const Membership& all = *table_.membership();
  // Workers speak with servers only, so they are not told of each other: of themselves they hear
  // which ranks are vacant.
  auto view = std::make_shared<Membership>();
  view->epoch = all.epoch;
  view->servers = all.servers;
  view->vacant = all.vacant;
  view->unsafe = all.unsafe;
  view->moved = all.moved;
  view->MakeIndex();
  workers_view_ = std::move(view);
}

// ---- declaring

CallId Job::Declare(NodeId node, DeclarationPart part, absl::Time deadline, absl::Time now) {
  Advance(now);
  const absl::Status status = CheckWorker(node, "declare");
  if (!status.ok()) return AnswerNow(status);
  const RosterMember member = MemberOf(node);
  const bool is_repeated = declarations_.IsRepeated(member, part);
  if (is_repeated) {
    if (const auto answer = declarations_.LastAnswerOf(member); answer.has_value()) {
      const CallId call_id = AnswerNow(answer->status());
      if (answer->ok()) completions_.back().declared = **answer;
      return call_id;
    }
  } else if (calls_.Declares(node)) {
    return AnswerNow(FailedPrecondition("%s declares twice at once", NameOf(member)));
  }
  if (log_ != nullptr) {
    if (auto logged = Record(PartDeclared{node, part}); !logged.ok()) return AnswerNow(logged);
  }
  // The earlier call's answer would reach nobody: its caller has repeated the call.
  for (const CallId call_id : calls_.Of(node)) {
    if (calls_.Find(call_id)->subject.kind != WaitSubject::Kind::kDeclare) continue;
    Complete(call_id, Cancelled("the same declaration came again"));
  }
  if (const CallId late = DeclareLate(node, &part); late != 0) return late;
  const PlacementVersion before = declarations_.version();
  const auto batch = declarations_.Declare(member, std::move(part));
  if (!batch.ok()) return AnswerNow(batch.status());
  if (declarations_.version() != before) ChangeForServers();
  const CallId call_id = calls_.Add({{WaitSubject::Kind::kDeclare, *batch}, node, deadline});
  AnswerDeclaration(call_id);
  // The batch may have ended by this call, which answers the calls of all workers in it.
  AnswerChangedDeclarations();
  return call_id;
}

void Job::AnswerDeclaration(CallId call_id) {
  const WaitingCall& call = *calls_.Find(call_id);
  const uint64_t batch = call.subject.batch;
  const RosterMember member = MemberOf(call.node);
  const auto answer = declarations_.AnswerOf(batch, member);
  if (!answer.has_value()) return;
  Complete(call_id, answer->status());
  if (answer->ok()) completions_.back().declared = **answer;
  const bool is_over = !answer->ok() || !(*answer)->wanted_from.has_value();
  if (is_over) declarations_.MarkAnswered(batch, member);
}

void Job::AnswerChangedDeclarations() {
  for (const uint64_t batch : declarations_.TakeChanged()) {
    for (const CallId call_id : calls_.WaitingFor({WaitSubject::Kind::kDeclare, batch})) {
      AnswerDeclaration(call_id);
    }
  }
}

absl::Status Job::Retire(NodeId node, const std::vector<uint32_t>& tensors, absl::Time now) {
  // As in Heartbeat: a heartbeat, which brings this, may come after its node was let go.
  const MembershipTable::Member* member = table_.Find(node);
  if (failure_.ok() && member != nullptr && member->left) return absl::OkStatus();
  BDN_RETURN_IF_ERROR(CheckWorker(node, "retire tensors"));
  now_ = now;
  // Nobody waits for a candidate. Its worker says once it is taken in with what it is done.
  if (IsCandidate(node)) return absl::OkStatus();
  // A repetition changes nothing, and an error does not either.
  if (declarations_.RetiresAny(MemberOf(node), tensors)) {
    BDN_RETURN_IF_ERROR(Record(TensorsRetired{node, tensors}));
  }
  const PlacementVersion before = declarations_.version();
  BDN_RETURN_IF_ERROR(declarations_.Retire(MemberOf(node), tensors));
  if (declarations_.version() != before) ChangeForServers();
  return absl::OkStatus();
}

absl::Status Job::AcknowledgePlacement(NodeId node, PlacementVersion version, absl::Time now) {
  BDN_RETURN_IF_ERROR(CheckMember(node));
  now_ = now;
  if (version.catalogue == 0) return AcknowledgeEpoch(node, version.epoch, now);
  if (declarations_.IsAcknowledged(node, version)) {
    table_.Heard(node, now);
    return absl::OkStatus();
  }
  BDN_RETURN_IF_ERROR(declarations_.CheckAcknowledges(node, version));
  BDN_RETURN_IF_ERROR(Record(PlacementInstalled{node, version}));
  BDN_RETURN_IF_ERROR(declarations_.Acknowledge(node, version));
  table_.Heard(node, now);
  AnswerChangedDeclarations();
  return absl::OkStatus();
}

// ---- barriers and leaving

CallId Job::ArriveAtBarrier(NodeId node, const Arrival& arrival, absl::Time deadline,
                            absl::Time now) {
  Advance(now);
  const std::string& name = arrival.barrier;
  absl::Status status = CheckWorker(node, "barrier");
  if (status.ok()) status = CheckText(options_.limits, "barrier", name);
  if (status.ok()) status = CheckBarrierRanks(node, name);
  if (status.ok() && !barriers_.MayOpen(name, kMaxBarriers)) {
    status = ResourceExhausted("more than %d barriers are open", kMaxBarriers);
  }
  if (!status.ok()) return AnswerNow(status);
  if (arrival.number != 0) {
    const Met* answer = barriers_.AnswerTo(node, arrival.number, arrival.first_open);
    // The answer to this arrival was lost on its way.
    if (answer != nullptr) {
      const CallId call_id = AnswerNow(absl::OkStatus());
      completions_.back().met = *answer;
      return call_id;
    }
  }
  if (IsCandidate(node) || candidates_.IsEntering(node)) {
    return ArriveAsCandidate(node, arrival, deadline);
  }
  status = Record(BarrierReached{node, name, arrival.number});
  if (!status.ok()) return AnswerNow(status);
  const RosterMember member = MemberOf(node);
  const bool is_new = barriers_.Arrive(name, roster_, member, arrival.number);
  const CallId call_id = calls_.Add({{WaitSubject::Kind::kBarrier, 0, name}, node, deadline});
  if (barriers_.IsFull(name)) {
    OnBarrierFull(name);
  } else if (is_new) {
    // A worker that leaves ends the barriers that are open then without it. This barrier is new, so
    // none has done that yet, and one of those that are leaving is enough.
    for (const RosterMember& leaving : leaving_.present()) {
      if (leaving == member) continue;
      AbortIfLeaving(name, leaving);
      break;
    }
  }
  return call_id;
}

absl::Status Job::CheckBarrierRanks(NodeId node, const std::string& name) const {
  const RankGroup ranks = GroupInName(name);
  const RosterMember member = MemberOf(node);
  // Candidates are taken in by all.
  if (IsBoundary(name) && !ranks.is_all()) {
    return InvalidArgument("barrier '%s': a boundary is of all ranks", name);
  }
  if (ranks.Has(member.rank)) return absl::OkStatus();
  return InvalidArgument("%s comes to a barrier among %s, and is none of these", NameOf(member),
                         ranks.ToString());
}

void Job::EndBarrier(const std::string& name, const absl::Status& status, const Met& met) {
  Met answer = met;
  answer.vacant = table_.membership()->vacant;
  for (const CallId call_id : calls_.WaitingFor({WaitSubject::Kind::kBarrier, 0, name})) {
    const NodeId node = calls_.Find(call_id)->node;
    if (IsCandidate(node) || candidates_.IsEntering(node)) continue;
    Complete(call_id, status);
    completions_.back().met = answer;
  }
  barriers_.End(name, status.ok(), answer);
}

void Job::AbortIfLeaving(const std::string& name, const RosterMember& member) {
  if (barriers_.Has(name, member) || !barriers_.Expects(name, member)) return;
  EndBarrier(name, Aborted("barrier '%s': %s is leaving the job instead", name, NameOf(member)));
}

CallId Job::Leave(NodeId node, const absl::Status& reason, absl::Time deadline, absl::Time now) {
  Advance(now);
  const MembershipTable::Member* member = table_.Find(node);
  if (!failure_.ok() && IsCandidate(node)) {
    OnCandidateGone(node, "left");
    return AnswerNow(reason.ok() ? failure_ : absl::OkStatus());
  }
  if (!failure_.ok()) {
    // After a failure a node that leaves only has to be counted.
    table_.MarkLeft(node);
    ++revision_.job;
    return AnswerNow(reason.ok() ? failure_ : absl::OkStatus());
  }
  // The node asks again, because the answer to its first call was lost.
  if (member != nullptr && member->left && reason.ok()) return AnswerNow(absl::OkStatus());
  absl::Status status = CheckMember(node);
  const bool is_of_server =
      status.ok() && member->info.role == Role::kServer && !work_done_ && lost_servers_.may_lose();
  // A node that is stopped has a reason of its own, such as a new version of its pod, or the end of
  // its machine's lease. Any other error is one that the job would have with another node, too.
  const bool is_stopped = absl::IsUnavailable(reason);
  if (is_of_server && (reason.ok() || (is_stopped && MayGoOnWithout(member->info)))) {
    // The log has this as the loss that it is.
    status = Lose(node, reason.ok() ? "left before the workers were done"
                                    : absl::StrFormat("left: %s", reason.message()));
    return AnswerNow(status.ok() ? failure_ : status);
  }
  const bool is_of_worker = status.ok() && member->info.role == Role::kWorker && !work_done_;
  if (is_of_worker && is_stopped && !IsCandidate(node)) {
    if (MayGoOnWithout(member->info)) {
      return AnswerNow(Lose(node, absl::StrFormat("left: %s", reason.message())));
    }
    return AnswerNow(FailedPrecondition(
        "the job does not go on without %s: %d workers would be left, and min-workers is %d",
        NameOf(MemberOf(node)), roster_.size() - 1,
        options_.config.min_workers > 0 ? options_.config.min_workers
                                        : options_.config.num_workers));
  }
  if (IsCandidate(node)) {
    // Its error concerns nobody else.
    return AnswerNow(LoseCandidate(
        node, reason.ok() ? "left" : absl::StrFormat("left with an error: %s", reason.message())));
  }
  if (status.ok()) status = Record(NodeLeft{node, reason});
  if (!status.ok()) return AnswerNow(status);
  if (!reason.ok()) {
    table_.MarkLeft(node);
    FailBy(node, absl::StrFormat("left with an error: %s", reason.message()));
    return AnswerNow(absl::OkStatus());
  }
  if (member->info.role == Role::kServer) return LeaveAsServer(node);
  if (work_done_) {
    table_.MarkLeft(node);
    ++revision_.job;
    return AnswerNow(absl::OkStatus());
  }
  return LeaveAsWorker(MemberOf(node), deadline);
}

CallId Job::TryToLeave(NodeId node, const absl::Status& reason, absl::Time now) {
  Advance(now);
  if (!failure_.ok()) return AnswerNow(failure_);
  if (absl::Status status = CheckMember(node); !status.ok()) return AnswerNow(status);
  const NodeInfo& info = table_.Find(node)->info;
  if (info.role != Role::kServer) {
    return AnswerNow(
        InvalidArgument("%s asks what only servers ask", MembershipTable::Describe(info)));
  }
  if (work_done_) return AnswerNow(FailedPrecondition("the job's work is done"));
  if (!lost_servers_.HasOther(info)) {
    return AnswerNow(FailedPrecondition("no other server can answer for the keys of server %d%s",
                                        info.rank,
                                        lost_servers_.may_lose() ? "" : ": replay-steps is 0"));
  }
  return AnswerNow(Lose(node, absl::StrFormat("left: %s", reason.message())));
}

CallId Job::LeaveAsServer(NodeId node) {
  table_.MarkLeft(node);
  if (!work_done_) {
    TakeOut(node, "left before the workers were done");
    return AnswerNow(failure_);
  }
  ++revision_.job;
  return AnswerNow(absl::OkStatus());
}

CallId Job::LeaveAsWorker(const RosterMember& member, absl::Time deadline) {
  const CallId call_id = calls_.Add({{WaitSubject::Kind::kLeave}, member.node, deadline});
  if (leaving_.Has(member)) return call_id;  // it asks again, and waits in both calls
  leaving_.Arrive(member);
  leaving_ranks_.push_back(member.rank);
  FaultPoint("leave.some");
  Happened("leaving", NameOf(member));
  ChangeForServers();
  // Barriers and declarations that wait for this worker would wait for ever.
  for (const std::string& name : barriers_.Names()) AbortIfLeaving(name, member);
  const PlacementVersion before = declarations_.version();
  declarations_.OnLeaving(member);
  if (declarations_.version() != before) ChangeForServers();
  AnswerChangedDeclarations();
  if (leaving_.full()) EndWork();
  return call_id;
}

void Job::EndWork() {
  work_done_ = true;
  auto view = std::make_shared<Membership>(*workers_view_);
  ++view->epoch;
  // Servers see one more epoch, without workers, which tells them that their work is done.
  last_view_ = std::move(view);
  // A worker whose call was lost with another scheduler asks again, and has not left before.
  for (const NodeInfo& worker : table_.membership()->workers) {
    if (calls_.Has({WaitSubject::Kind::kLeave}, worker.id)) table_.MarkLeft(worker.id);
  }
  DismissWaiting();
  lost_servers_.DropDeadline();
  ChangeForAll();
  Happened("done", "all workers have left");
  CompleteAll(calls_.WaitingFor({WaitSubject::Kind::kLeave}), absl::OkStatus());
}

// ---- the end, reports, and time that passes

void Job::Fail(absl::Status failure) {
  failure_ = std::move(failure);
  Happened("failed", std::string(failure_.message()));
  ChangeForAll();
  DismissWaiting();
  CompleteAll(calls_.All(), failure_);
  // After all calls are answered nothing waits at a barrier or for a batch.
  barriers_.Clear();
  declarations_.Abandon();
}

void Job::GoesOn(std::string text) {
  const Epoch epoch = table_.membership()->epoch;
  Happened("goes on", absl::StrFormat("epoch %d, %s", epoch, text));
  changes_[epoch] = std::move(text);
  if (changes_.size() > kMostChanges) changes_.erase(changes_.begin());
}

void Job::Happened(const char* kind, std::string text) {
  if (history_ != nullptr) history_->Happened(now_, kind, std::move(text));
}

std::vector<std::string> Job::Waits() const {
  std::vector<std::string> texts;
  for (const CallId call_id : calls_.All()) {
    std::string text = WaitedFor(*calls_.Find(call_id));
    if (std::find(texts.begin(), texts.end(), text) != texts.end()) continue;
    texts.push_back(std::move(text));
    if (texts.size() == kMostWaits) break;
  }
  return texts;
}

void Job::Stop(const std::string& why) {
  if (!failure_.ok() || work_done_) return;
  // Also where that cannot be logged: nobody serves the job any more.
  (void)Record(JobStopped{why});
  Fail(Aborted("%s", why));
}

absl::Status Job::Heartbeat(NodeId node, const NodeProgress& progress, absl::Time now) {
  // A heartbeat may cross the answer that lets its node go, and be read after that.
  const MembershipTable::Member* member = table_.Find(node);
  if (failure_.ok() && member != nullptr && member->left) return absl::OkStatus();
  BDN_RETURN_IF_ERROR(CheckMember(node));
  now_ = now;
  table_.Heard(node, now);
  table_.Report(node, progress);
  if (history_ != nullptr) history_->Progressed(now, node, member->info.role, progress);
  if (options_.has_leases && TakesPart(node)) {
    const NodeInfo& info = member->info;
    watch_.Heard(now, {node, info.role, info.rank, info.host}, progress.ended, progress.stages,
                 progress.work);
    TellSuspects();
  }
  return absl::OkStatus();
}

bool Job::TakesPart(NodeId node) const {
  const MembershipTable::Member* const member = table_.Find(node);
  return table_.frozen() && member != nullptr && member->is_here() && !IsCandidate(node) &&
         !calls_.Has({WaitSubject::Kind::kLeave}, node);
}

void Job::TellSuspects() {
  for (const SuspectWatch::Change& change : watch_.TakeChanges()) {
    if (change.begins) {
      const std::string sentence = SentenceOf(change.suspect, now_);
      LogWarning("%s", sentence);
      Happened("suspect", sentence);
      continue;
    }
    const Finding& finding = change.suspect.finding;
    const std::string end = absl::StrFormat("%s slows the job no longer (%s)",
                                            PlaceName(finding.who), SuspectKindName(finding.kind));
    LogInfo("%s", end);
    Happened("cleared", end);
  }
}

absl::Status Job::ReportQuality(NodeId node, const std::vector<QualityGroup>& groups,
                                absl::Time now) {
  // As in Heartbeat.
  const MembershipTable::Member* member = table_.Find(node);
  if (failure_.ok() && member != nullptr && member->left) return absl::OkStatus();
  BDN_RETURN_IF_ERROR(CheckMember(node));
  now_ = now;
  if (history_ != nullptr) history_->Measured(node, member->info.role, groups);
  return absl::OkStatus();
}

absl::Status Job::Report(NodeId node, const std::vector<ReportedValue>& values, absl::Time now) {
  const MembershipTable::Member* member = table_.Find(node);
  // As in Heartbeat.
  const bool has_left = failure_.ok() && member != nullptr && member->left;
  if (!has_left) BDN_RETURN_IF_ERROR(CheckWorker(node, "report"));
  now_ = now;
  // A candidate's program has taken no part in the steps yet.
  if (IsCandidate(node)) return absl::OkStatus();
  if (history_ != nullptr) history_->Reported(now, values);
  return absl::OkStatus();
}

void Job::ExpireCalls(absl::Time now) {
  for (const CallId call_id : calls_.Due(now)) {
    const WaitingCall* call = calls_.Find(call_id);
    // An earlier call in the list has failed the job, which answered all.
    if (call == nullptr) continue;
    EndWait(call_id, absl::DeadlineExceededError(WaitedFor(*call)));
  }
}

void Job::Advance(absl::Time now) {
  now_ = now;
  // Leases first: a lost node explains why others wait, and its error names it.
  ExpireLeases(now);
  AdmitServers();
  TakeCandidates();
  EndFullBoundaries();
  ExpireCalls(now);
  // A job without servers has a log, which is null only while events are replayed.
  if (log_ != nullptr && now >= std::max(lost_servers_.deadline(), deferred_until_) &&
      failure_.ok()) {
    FailWithoutServers();
  }
  if (state() == State::kWaiting && now >= join_deadline_) {
    Fail(DeadlineExceeded("not all nodes joined in time: waiting for %s", table_.Missing()));
  }
}

absl::Time Job::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (failure_.ok()) {
    next = std::max(std::min(table_.NextExpiry(), lost_servers_.deadline()), deferred_until_);
    if (lost_servers_.FindWaiting(-1) != 0 || HasFullBoundary() || MayTakeCandidate()) {
      next = std::min(next, deferred_until_);
    }
  }
  if (state() == State::kWaiting) next = std::min(next, join_deadline_);
  return std::min(next, calls_.NextDeadline());
}

// ---- what is seen

Job::State Job::state() const {
  if (!failure_.ok()) return State::kFailed;
  if (work_done_) return State::kDone;
  return table_.frozen() ? State::kRunning : State::kWaiting;
}

bool Job::finished() const { return table_.frozen() && table_.all_left(); }

std::vector<std::string> Job::WhoWent() const {
  std::vector<std::string> names;
  for (const Rank rank : leaving_ranks_) names.push_back(absl::StrFormat("worker %d", rank));
  if (lost_ != nullptr) {
    names.push_back(absl::StrFormat("%s %d", RoleName(lost_->role), lost_->rank));
  }
  return names;
}

Job::View Job::ViewOf(NodeId node) const {
  View view{.failure = failure_, .done = work_done_};
  const MembershipTable::Member* member = table_.Find(node);
  if (member == nullptr) return view;
  view.left = member->left;
  if (!member->evicted.ok()) return {.failure = member->evicted};
  if (member->info.role == Role::kWorker) {
    view.membership = workers_view_;
    view.candidates = static_cast<int>(candidates_.num_ready());
    if (member->is_candidate && failure_.ok()) view.failure = CheckMember(node);
    return view;
  }
  view.placed = declarations_.version();
  view.membership = work_done_ ? last_view_ : table_.membership();
  view.leaving = work_done_ ? 0 : leaving_ranks_.size();
  return view;
}

}  // namespace bdn
