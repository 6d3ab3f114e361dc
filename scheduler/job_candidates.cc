// The methods of Job about workers that join a job that runs.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "scheduler/job.h"

namespace bdn {

bool Job::IsCandidate(NodeId node) const {
  const MembershipTable::Member* const member = table_.Find(node);
  return member != nullptr && member->is_candidate;
}

std::string Job::DescribeWorker(NodeId node) const {
  return NameOf(MemberOf(node), table_.Find(node)->info);
}

std::vector<JobEvent> Job::BarrierEvents() const {
  std::vector<JobEvent> events = barriers_.Events();
  for (BarrierState& state : candidates_.Events()) events.push_back(std::move(state));
  return events;
}

std::string Job::WaitForRank() const {
  if (!table_.frozen()) return "waiting for the job to begin: for " + table_.Missing();
  constexpr size_t kMostNames = 8;
  std::string names;
  size_t count = 0;
  for (const auto& [id, member] : table_.members()) {
    if (member.info.role != Role::kWorker || !member.is_here()) continue;
    if (++count > kMostNames) continue;
    names += (count > 1 ? ", " : "") + DescribeWorker(id);
    if (member.is_candidate) names += " (waits to be taken in)";
  }
  if (count > kMostNames) absl::StrAppendFormat(&names, " and %d more", count - kMostNames);
  return absl::StrFormat("waiting for a worker's rank to be vacant: %s have theirs", names);
}

std::string Job::WaitToJoin() const {
  if (candidates_.waiting().empty()) return lost_servers_.Wait();
  return WaitForRank();
}

// ---- joining

void Job::TakeCandidates() {
  if (state() != State::kRunning) return;
  std::vector<uint64_t> numbers;
  for (const auto& [number, waiting] : candidates_.waiting()) numbers.push_back(number);
  for (const uint64_t number : numbers) {
    // The call of one that was taken is gone, with that of the same worker's other attempts.
    if (now_ < deferred_until_ || !candidates_.IsWaiting(number)) continue;
    const JoinRequest request = candidates_.waiting().at(number).request;
    if (table_.VacantWorkerRank(request.wanted_rank) < 0) continue;
    const absl::Status status = TakeCandidate(request);
    // What cannot be logged is tried again.
    if (absl::IsUnavailable(status)) return;
    const NodeId node = status.ok() ? table_.members().rbegin()->first : 0;
    for (const CallId call_id : candidates_.TakeCalls(number)) {
      Complete(call_id, status);
      if (status.ok()) FillJoined(table_.Find(node)->info, &completions_.back().join);
    }
  }
}

bool Job::MayTakeCandidate() const {
  return std::ranges::any_of(candidates_.waiting(), [this](const auto& entry) {
    return table_.VacantWorkerRank(entry.second.request.wanted_rank) >= 0;
  });
}

absl::Status Job::TakeCandidate(const JoinRequest& request) {
  // Another one may have joined with its public key meanwhile.
  BDN_RETURN_IF_ERROR(table_.CheckAdmits(request));
  const Rank rank = table_.VacantWorkerRank(request.wanted_rank);
  BDN_RETURN_IF_ERROR(table_.CheckCandidate(request, rank));
  const CandidateJoined event{table_.MakeNode(request, rank), request.join_id};
  BDN_RETURN_IF_ERROR(Record(event));
  OnCandidateJoined(event, now_);
  return absl::OkStatus();
}

void Job::OnCandidateJoined(const CandidateJoined& event, absl::Time now) {
  table_.AddCandidate(event.worker, event.join_id, now);
  ++revision_.job;
  Happened("joined", DescribeWorker(event.worker.id) + ", which waits to be taken in");
}

absl::Status Job::LoseCandidate(NodeId node, const std::string& how) {
  BDN_RETURN_IF_ERROR(Record(CandidateGone{node}));
  LogInfo("%s, which waited to be taken in, %s", DescribeWorker(node), how);
  OnCandidateGone(node, how);
  return absl::OkStatus();
}

void Job::OnCandidateGone(NodeId node, const std::string& how) {
  const std::string name = DescribeWorker(node);
  Happened("lost", absl::StrFormat("%s, which waited to be taken in, %s", name, how));
  CompleteAll(calls_.Of(node),
              Evicted("the job goes on without %s, which waited to be taken in: it %s", name, how));
  candidates_.Withdraw(node);
  declarations_.ForgetCandidate(node);
  table_.ForgetCandidate(node);
  ChangeForAll();
  EndFullBoundaries();
}

// ---- its calls

CallId Job::DeclareLate(NodeId node, DeclarationPart* part) {
  const auto answer = declarations_.DeclareLate(MemberOf(node), IsCandidate(node), part);
  if (!answer.has_value()) return 0;
  const CallId call_id = AnswerNow(answer->status());
  if (answer->ok()) completions_.back().declared = **answer;
  return call_id;
}

CallId Job::ArriveAsCandidate(NodeId node, const Arrival& arrival, absl::Time deadline) {
  const std::string& name = arrival.barrier;
  if (candidates_.IsEntering(node)) {
    candidates_.ArriveAgain(node, arrival.number);
    const CallId call_id = calls_.Add({{WaitSubject::Kind::kBarrier, 0, name}, node, deadline});
    AnswerNewcomers();
    return call_id;
  }
  // Nobody waits for it at other barriers.
  if (!IsBoundary(name)) {
    const CallId call_id = AnswerNow(absl::OkStatus());
    completions_.back().met.vacant = table_.membership()->vacant;
    return call_id;
  }
  const absl::Status logged = Record(BarrierReached{node, name, arrival.number});
  if (!logged.ok()) return AnswerNow(logged);
  candidates_.Arrive(name, node, arrival.number);
  ChangeForAll();
  return calls_.Add({{WaitSubject::Kind::kBarrier, 0, name}, node, deadline});
}

std::string Job::WaitOfCandidate(const WaitingCall& call) const {
  if (IsCandidate(call.node)) {
    const std::string& name = call.subject.barrier;
    return absl::StrFormat("waiting to be taken in: for %s to come to '%s'",
                           barriers_.Has(name) ? barriers_.Missing(name) : NamesOf(roster_), name);
  }
  const Epoch epoch = table_.membership()->epoch;
  for (const NodeInfo& server : table_.membership()->servers) {
    if (let_in_.at(server.id) >= epoch) continue;
    return absl::StrFormat("waiting for %s to let in the workers of epoch %d",
                           MembershipTable::Describe(server), epoch);
  }
  return "waiting for nobody";
}

// ---- boundaries

void Job::OnBarrierFull(const std::string& name) {
  BoundaryEnded event{name, candidates_.ReadyAt(name)};
  if (event.taken_in.empty()) return EndBarrier(name, absl::OkStatus());
  // The log tells which of them were taken in.
  if (is_replaying_ || now_ < deferred_until_) return;
  // One whose call is broken comes again, and waits for the next boundary.
  std::erase_if(event.taken_in, [&](const auto& ready) {
    return !calls_.Has({WaitSubject::Kind::kBarrier, 0, name}, ready.first);
  });
  if (Record(event).ok()) OnBoundaryEnded(event, now_);
}

bool Job::HasFullBoundary() const {
  const std::vector<std::string> names = barriers_.Names();
  return std::ranges::any_of(names, [this](const std::string& name) {
    return IsBoundary(name) && barriers_.IsFull(name);
  });
}

void Job::EndFullBoundaries() {
  if (!failure_.ok() || work_done_) return;
  for (const std::string& name : barriers_.Names()) {
    if (IsBoundary(name) && barriers_.IsFull(name)) OnBarrierFull(name);
  }
}

void Job::OnBoundaryEnded(const BoundaryEnded& event, absl::Time now) {
  std::vector<NodeId> nodes;
  for (const auto& [node, numbers] : event.taken_in) {
    if (IsCandidate(node)) nodes.push_back(node);
  }
  Met met;
  if (!nodes.empty()) {
    table_.AdmitCandidates(nodes, now);
    std::string names;
    for (const NodeId node : nodes) {
      const RosterMember member = MemberOf(node);
      met.newcomers.push_back(member.rank);
      names += (names.empty() ? "" : ", ") + DescribeWorker(node);
      roster_.insert(member);
      leaving_.Expect(member);
    }
    std::ranges::sort(met.newcomers);
    met.epoch = table_.membership()->epoch;
    met.vacant = table_.membership()->vacant;
    declarations_.OnMembership(table_.membership());
    for (const NodeId node : nodes) {
      declarations_.Admit(MemberOf(node));
      candidates_.Enter({node, event.boundary, met, event.taken_in.at(node)});
    }
    MakeWorkersView();
    ChangeForAll();
    GoesOn(absl::StrFormat("with %d of %d workers: with %s", roster_.size(),
                           options_.config.num_workers, names));
  }
  // A log that was shortened has no more than the answers.
  if (barriers_.Has(event.boundary)) EndBarrier(event.boundary, absl::OkStatus(), met);
  AnswerChangedDeclarations();
  AnswerNewcomers();
}

absl::Status Job::AcknowledgeEpoch(NodeId node, Epoch epoch, absl::Time now) {
  const auto known = let_in_.find(node);
  const Epoch latest = table_.membership()->epoch;
  if (known == let_in_.end()) return InvalidArgument("node %d is no server", node);
  if (epoch > latest) {
    return InvalidArgument("epoch %d does not exist yet: the membership is at epoch %d", epoch,
                           latest);
  }
  table_.Heard(node, now);
  if (epoch <= known->second) return absl::OkStatus();
  BDN_RETURN_IF_ERROR(Record(PlacementInstalled{node, {epoch, 0}}));
  known->second = epoch;
  AnswerNewcomers();
  return absl::OkStatus();
}

void Job::AnswerNewcomers() {
  Epoch least = std::numeric_limits<Epoch>::max();
  for (const NodeInfo& server : table_.membership()->servers) {
    least = std::min(least, let_in_.at(server.id));
  }
  for (const Candidates::Entering& entered : candidates_.TakeEntered(least)) {
    for (const uint64_t number : entered.numbers) {
      barriers_.KeepAnswer(entered.node, number, entered.met);
    }
    const WaitSubject at{WaitSubject::Kind::kBarrier, 0, entered.boundary};
    for (const CallId call_id : calls_.Of(at, entered.node)) {
      Complete(call_id, absl::OkStatus());
      completions_.back().met = entered.met;
    }
  }
}

}  // namespace bdn
