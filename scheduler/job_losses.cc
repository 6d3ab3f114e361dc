// The part of Job that acts on lost nodes: who is lost, and how the job goes on or ends. What it
// decides about servers is in LostServers.

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "scheduler/job.h"

namespace bdn {

// ---- who is lost

void Job::ConnectionBroke(NodeId node, absl::Time now) {
  table_.ShortenLease(node, now + options_.broken_connection_grace);
}

void Job::WasHeldUp(absl::Duration pause) {
  if (failure_.ok()) table_.LengthenLeases(pause);
  watch_.WasHeldUp(pause);
}

void Job::ExpireLeases(absl::Time now) {
  while (failure_.ok() && now >= deferred_until_) {
    const MembershipTable::Member* member = table_.Expired(now);
    if (member == nullptr) return;
    std::string how = absl::StrFormat("stopped answering %.1f s ago",
                                      absl::ToDoubleSeconds(now - member->last_heard));
    const Step step = member->progress.step;
    if (step > 0) absl::StrAppendFormat(&how, ", after step %d", step);
    Lost(member->info.id, how);
  }
}

absl::Status Job::ReportWaits(NodeId node, const std::vector<NodeWait>& waits, absl::Time now) {
  BDN_RETURN_IF_ERROR(CheckMember(node));
  now_ = now;
  const NodeInfo& info = table_.Find(node)->info;
  if (IsCandidate(node)) return absl::OkStatus();
  if (info.role == Role::kServer) {
    OnRoundsWait(info, waits);
  } else {
    OnUnheard(info, waits);
  }
  return absl::OkStatus();
}

void Job::OnRoundsWait(const NodeInfo& server, const std::vector<NodeWait>& waits) {
  const absl::Duration most = options_.config.stuck_timeout;
  for (const NodeWait& each : waits) {
    if (most == absl::ZeroDuration() || each.wait < most || work_done_) continue;
    const auto late = std::ranges::find(roster_, each.node, &RosterMember::node);
    // A worker of an earlier epoch, or one that the job cannot do without, is only waited for.
    if (late == roster_.end() || !MayGoOnWithout(table_.Find(late->node)->info)) continue;
    Lost(late->node, absl::StrFormat("lives, but rounds at server %d have waited for its pushes "
                                     "for %.1f s, and stuck-timeout is %s",
                                     server.rank, absl::ToDoubleSeconds(each.wait),
                                     absl::FormatDuration(most)));
  }
}

void Job::OnUnheard(const NodeInfo& worker, const std::vector<NodeWait>& servers) {
  if (work_done_) return;
  // A scheduler that was started again knows of none of them, at first.
  const bool has_heard_all = std::ranges::all_of(roster_, [this](const RosterMember& one) {
    return table_.Find(one.node)->last_heard > resumed_;
  });
  const auto out = lost_servers_.OnUnheard(worker, servers, roster_, MayGoOnWithout(worker),
                                           has_heard_all, now_);
  if (out.has_value()) Lost(out->node, out->how);
}

// ---- the job without a node

void Job::Lost(NodeId node, const std::string& how) { (void)Lose(node, how); }

absl::Status Job::Lose(NodeId node, const std::string& how) {
  if (IsCandidate(node)) return LoseCandidate(node, how);
  const MembershipTable::Member* member = table_.Find(node);
  const bool is_server = member != nullptr && member->info.role == Role::kServer &&
                         member->is_here() && lost_servers_.may_lose();
  // In one event: the slots go to the server that waits, and not to the others.
  const uint64_t waiting = is_server ? lost_servers_.FindWaiting(member->info.rank) : 0;
  if (waiting != 0) return AdmitServer(waiting, node, how);
  BDN_RETURN_IF_ERROR(Record(NodeLost{node, how}));
  TakeOut(node, how);
  return absl::OkStatus();
}

void Job::TakeOut(NodeId node, const std::string& how) {
  const MembershipTable::Member* member = table_.Find(node);
  // Before the freeze a lost node is one that gives up joining, which Withdraw handles. A worker
  // that is out already cannot be lost again.
  const bool counts = member != nullptr && table_.frozen() && failure_.ok() && member->evicted.ok();
  if (!counts) return;
  if (work_done_) {
    table_.MarkLeft(node);
    ++revision_.job;
  } else if (member->info.role == Role::kServer && MayGoOnWithout(member->info)) {
    GoOnWithoutServer(member->info, how);
  } else if (MayGoOnWithout(member->info)) {
    GoOnWithout(MemberOf(node), how);
  } else if (member->info.role == Role::kServer && lost_servers_.may_lose() &&
             options_.config.num_servers > 1) {
    FailBy(node, how + "; no server is left");
  } else {
    const int fewest = options_.config.min_workers;
    const bool has_rule = member->info.role == Role::kWorker && fewest > 0;
    const size_t left = roster_.size() - 1;
    FailBy(node, has_rule ? absl::StrFormat("%s; %d worker%s would be left, and min-workers is %d",
                                            how, left, left == 1 ? "" : "s", fewest)
                          : how);
  }
}

bool Job::MayGoOnWithout(const NodeInfo& node) const {
  if (node.role == Role::kServer) return lost_servers_.MayGoOnWithoutOne();
  const int fewest = options_.config.min_workers;
  return fewest > 0 && roster_.size() > static_cast<size_t>(fewest);
}

void Job::FailBy(NodeId node, const std::string& how) {
  const NodeInfo& info = table_.Find(node)->info;
  const std::string name =
      info.role == Role::kWorker ? NameOf(MemberOf(node), info) : MembershipTable::Describe(info);
  Happened("lost", name);
  lost_ = &info;
  Fail(Aborted("%s %s", name, how));
}

void Job::GoOnWithout(const RosterMember& gone, const std::string& how) {
  const std::string name = NameOf(gone, table_.Find(gone.node)->info);
  Happened("lost", name);
  const absl::Status evicted = Evicted("the job goes on without %s, which %s", name, how);
  table_.Evict(gone.node, evicted);
  roster_.erase(gone);
  declarations_.OnMembership(table_.membership());
  MakeWorkersView();
  ChangeForAll();
  GoesOn(absl::StrFormat("with %d of %d workers: without %s, which %s", roster_.size(),
                         options_.config.num_workers, NameOf(gone), how));
  // Its own calls first: nothing that they wait for concerns it any more.
  CompleteAll(calls_.Of(gone.node), evicted);
  candidates_.Leave(gone.node);
  for (const std::string& name : barriers_.Remove(gone)) {
    // Newcomers are taken in once all else is as it is without this worker.
    const bool waits = IsBoundary(name) && !candidates_.ReadyAt(name).empty();
    if (!waits) EndBarrier(name, absl::OkStatus());
  }
  const PlacementVersion before = declarations_.version();
  declarations_.OnLost(gone);
  if (declarations_.version() != before) ChangeForServers();
  AnswerChangedDeclarations();
  leaving_.Remove(gone);
  if (leaving_.full()) EndWork();
  EndFullBoundaries();
}

// ---- other servers

void Job::GoOnWithoutServer(const NodeInfo& gone, const std::string& how) {
  Happened("lost", MembershipTable::Describe(gone));
  GoesOn(lost_servers_.TakeOut(gone, how));
  OnServersChanged();
}

void Job::OnServerJoined(const ServerJoined& event, absl::Time now) {
  if (event.lost != 0) Happened("lost", MembershipTable::Describe(table_.Find(event.lost)->info));
  Happened("joined", MembershipTable::Describe(event.server));
  GoesOn(lost_servers_.AddServer(event, now));
  let_in_[event.server.id] = table_.membership()->epoch;
  OnServersChanged();
}

void Job::OnServersChanged() {
  lost_servers_.OnChanged(now_);
  MakeWorkersView();
  ChangeForAll();
  declarations_.OnMembership(table_.membership());
  AnswerChangedDeclarations();
  AnswerNewcomers();
}

void Job::FailWithoutServers() {
  const LostServers::Loss loss = lost_servers_.LossOfAll();
  if (!Record(JobStopped{loss.why}).ok()) return;
  lost_ = loss.last;
  Fail(Aborted("%s", loss.why));
}

CallId Job::AwaitVacancy(const JoinRequest& request, absl::Time deadline, absl::Time now) {
  if (absl::Status status = table_.CheckAdmits(request); !status.ok()) return AnswerNow(status);
  now_ = now;
  const uint64_t number = lost_servers_.NewNumber();
  const CallId call_id = calls_.Add({{WaitSubject::Kind::kVacancy, number}, 0, deadline});
  if (request.role == Role::kWorker) {
    candidates_.Await(number, request, call_id);
    TakeCandidates();
  } else {
    lost_servers_.Await(number, request, call_id);
    AdmitServers();
  }
  return call_id;
}

absl::Status Job::AdmitServer(uint64_t number, NodeId lost, const std::string& how) {
  const ServerJoined event = lost_servers_.JoinOf(number, lost, how);
  BDN_RETURN_IF_ERROR(Record(event));
  OnServerJoined(event, now_);
  for (const CallId call_id : lost_servers_.TakeCalls(number)) {
    Complete(call_id, absl::OkStatus());
    FillJoined(event.server, &completions_.back().join);
  }
  return absl::OkStatus();
}

void Job::AdmitServers() {
  while (now_ >= deferred_until_) {
    const uint64_t number = lost_servers_.FindWaiting(-1);
    // Advance tries again whatever cannot be logged now.
    if (number == 0 || !AdmitServer(number, 0, "").ok()) return;
  }
}

void Job::DismissWaiting() {
  const std::string& id = options_.config.job_id;
  const absl::Status end = options_.is_followed
                               ? Unavailable("job '%s' ends; the next one begins then", id)
                           : failure_.ok() ? Unneeded("job '%s' is done and takes no more", id)
                                           : failure_;
  CompleteAll(lost_servers_.TakeAllCalls(), end);
  CompleteAll(candidates_.TakeAllCalls(), end);
  if (!failure_.ok()) return;
  for (const auto& [id, member] : table_.members()) {
    if (member.is_candidate) CompleteAll(calls_.Of(id), CheckMember(id));
  }
}

}  // namespace bdn
