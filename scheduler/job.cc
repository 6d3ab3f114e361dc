#include "scheduler/job.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr size_t kMaxBarriers = 4096;

}  // namespace

Job::Job(JobOptions options, absl::Time now)
    : options_(std::move(options)),
      join_deadline_(now + options_.join_timeout),
      table_(options_.config.num_workers, options_.config.num_servers,
             options_.has_leases ? options_.config.lease_timeout : absl::InfiniteDuration()),
      declarations_(options_.config) {}

// ---- calls

CallId Job::Refuse(const absl::Status& status) {
  const CallId call_id = calls_.NewId();
  completions_.push_back({call_id, status, {}, {}});
  return call_id;
}

void Job::Complete(CallId call_id, absl::Status status) {
  const WaitingCall call = calls_.Take(call_id);
  Completion completion{call_id, std::move(status), {}, {}};
  if (completion.status.ok() && call.kind == WaitingCall::Kind::kJoin) {
    const MembershipTable::Member* member = table_.Find(call.node);
    completion.join = {.node = member->info.id,
                       .rank = member->info.rank,
                       .config = options_.config,
                       .membership = table_.membership(),
                       .data_secret = options_.data_secret};
  }
  if (completion.status.ok() && call.kind == WaitingCall::Kind::kDeclare) {
    completion.declared = {declarations_.catalogue(), declarations_.placement()};
  }
  completions_.push_back(std::move(completion));
}

template <typename Condition>
void Job::CompleteWhere(Condition condition, const absl::Status& status) {
  for (const CallId call_id : calls_.Where(condition)) Complete(call_id, status);
}

std::vector<Job::Completion> Job::TakeCompletions() { return std::exchange(completions_, {}); }

void Job::Withdraw(const WaitingCall& call) {
  if (calls_.Has(call.kind, call.node, call.barrier)) return;  // asked twice, given up once
  switch (call.kind) {
    case WaitingCall::Kind::kJoin:
      table_.Remove(call.node);
      return;
    case WaitingCall::Kind::kDeclare:  // a later call with the same list goes on with the batch
      return;
    case WaitingCall::Kind::kBarrier: {
      const auto barrier = barriers_.find(call.barrier);
      barrier->second.Withdraw(MemberOf(call.node));
      if (barrier->second.empty()) barriers_.erase(barrier);
      return;
    }
    case WaitingCall::Kind::kLeave:
      leaving_.Withdraw(MemberOf(call.node));
      Lost(call.node, "gave up waiting to leave");
      return;
  }
}

std::string Job::WaitedFor(const WaitingCall& call) const {
  switch (call.kind) {
    case WaitingCall::Kind::kJoin:
      return "waiting for " + table_.Missing();
    case WaitingCall::Kind::kBarrier:
      return absl::StrFormat("barrier '%s': waiting for %s", call.barrier,
                             barriers_.at(call.barrier).Missing());
    case WaitingCall::Kind::kLeave:
      return "waiting to leave with " + leaving_.Missing();
    case WaitingCall::Kind::kDeclare:
      return declarations_.WaitedFor(call.batch);
  }
  return "";
}

void Job::Cancel(CallId call_id) {
  if (calls_.Find(call_id) == nullptr) return;
  EndWait(call_id, Cancelled("the call was given up"));
}

void Job::EndWait(CallId call_id, const absl::Status& status) {
  const WaitingCall call = *calls_.Find(call_id);
  Complete(call_id, status);
  Withdraw(call);
}

// ---- checks

RosterMember Job::MemberOf(NodeId node) const { return {table_.Find(node)->info.rank, node}; }

absl::Status Job::CheckMember(NodeId node) const {
  if (!failure_.ok()) return failure_;
  if (!table_.frozen()) return FailedPrecondition("not all nodes have joined yet");
  const MembershipTable::Member* member = table_.Find(node);
  if (member == nullptr) return NotFound("node %d is not of this job", node);
  if (member->left) return FailedPrecondition("node %d has left", node);
  return absl::OkStatus();
}

absl::Status Job::CheckWorker(NodeId node, const char* call) const {
  BDN_RETURN_IF_ERROR(CheckMember(node));
  if (table_.Find(node)->info.role == Role::kWorker) return absl::OkStatus();
  return InvalidArgument("%s: only workers do, node %d is a server", call, node);
}

absl::Status Job::CheckJoin(const JoinRequest& request, uint32_t version) const {
  const JobConfig& config = options_.config;
  if (version != kControlVersion) {
    return FailedPrecondition("the scheduler speaks control version %d, %s speaks %d",
                              kControlVersion, request.host, version);
  }
  BDN_RETURN_IF_ERROR(CheckText("job id", request.job_id));
  BDN_RETURN_IF_ERROR(CheckText("data address", request.data_address));
  BDN_RETURN_IF_ERROR(CheckText("host", request.host));
  if (!request.job_id.empty() && request.job_id != config.job_id) {
    return FailedPrecondition("this scheduler runs job '%s', %s wants job '%s'", config.job_id,
                              request.host, request.job_id);
  }
  if (request.role == Role::kServer && request.data_address.empty()) {
    return InvalidArgument("a server joined without an address");
  }
  if (request.data_security == LinkSecurity::kEncrypted && request.public_key.empty()) {
    return InvalidArgument("%s listens encrypted, but joined without a public key", request.host);
  }
  if (!failure_.ok()) return failure_;
  if (table_.frozen()) {
    return FailedPrecondition("job '%s' has all its nodes and takes no more", config.job_id);
  }
  return absl::OkStatus();
}

// ---- joining

CallId Job::Join(const JoinRequest& request, uint32_t version, absl::Time deadline,
                 absl::Time now) {
  Advance(now);
  if (const absl::Status status = CheckJoin(request, version); !status.ok()) return Refuse(status);
  const auto node = table_.Add(request, now);
  if (!node.ok()) return Refuse(node.status());
  const CallId call_id = calls_.Add({WaitingCall::Kind::kJoin, *node, deadline, 0, ""});
  StartIfFull(now);
  return call_id;
}

void Job::StartIfFull(absl::Time now) {
  if (!table_.full()) return;
  table_.Freeze(now);
  roster_ = RosterOf(*table_.membership());
  leaving_ = Barrier(roster_);
  declarations_.Begin(table_.membership());
  ++revision_;
  CompleteWhere([](const WaitingCall& call) { return call.kind == WaitingCall::Kind::kJoin; },
                absl::OkStatus());
}

// ---- declaring

CallId Job::Declare(NodeId node, std::vector<TensorDeclaration> tensors, absl::Time deadline,
                    absl::Time now) {
  Advance(now);
  absl::Status status = CheckWorker(node, "declare");
  if (status.ok() && calls_.Has(WaitingCall::Kind::kDeclare, node, "")) {
    status = FailedPrecondition("worker %d declares twice at once", table_.Find(node)->info.rank);
  }
  if (!status.ok()) return Refuse(status);
  const std::shared_ptr<const Catalogue> before = declarations_.catalogue();
  const auto batch = declarations_.Declare(MemberOf(node), std::move(tensors));
  if (!batch.ok()) return Refuse(batch.status());
  if (declarations_.catalogue() != before) ++revision_;
  const CallId call_id = calls_.Add({WaitingCall::Kind::kDeclare, node, deadline, *batch, ""});
  AnswerDeclarations();
  AbortWaitsForLeaving();
  return call_id;
}

void Job::AnswerDeclarations() {
  const auto declares = [](const WaitingCall& call) {
    return call.kind == WaitingCall::Kind::kDeclare;
  };
  for (const CallId call_id : calls_.Where(declares)) {
    const WaitingCall call = *calls_.Find(call_id);
    const std::optional<absl::Status> answer = declarations_.AnswerOf(call.batch);
    if (!answer.has_value()) continue;
    Complete(call_id, *answer);
    declarations_.MarkAnswered(call.batch, MemberOf(call.node));
  }
}

absl::Status Job::AcknowledgePlacement(NodeId node, PlacementVersion version, absl::Time now) {
  BDN_RETURN_IF_ERROR(CheckMember(node));
  BDN_RETURN_IF_ERROR(declarations_.Acknowledge(node, version));
  table_.Heard(node, now);
  AnswerDeclarations();
  return absl::OkStatus();
}

// ---- barriers and leaving

CallId Job::ArriveAtBarrier(NodeId node, const std::string& name, absl::Time deadline,
                            absl::Time now) {
  Advance(now);
  absl::Status status = CheckWorker(node, "barrier");
  if (status.ok()) status = CheckText("barrier", name);
  if (status.ok() && barriers_.size() >= kMaxBarriers && barriers_.count(name) == 0) {
    status = ResourceExhausted("more than %d barriers are open", kMaxBarriers);
  }
  if (!status.ok()) return Refuse(status);
  const auto barrier = barriers_.try_emplace(name, roster_).first;
  barrier->second.Arrive(MemberOf(node));
  const CallId call_id = calls_.Add({WaitingCall::Kind::kBarrier, node, deadline, 0, name});
  if (barrier->second.full()) EndBarrier(name, absl::OkStatus());
  AbortWaitsForLeaving();
  return call_id;
}

void Job::EndBarrier(const std::string& name, const absl::Status& status) {
  CompleteWhere(
      [&](const WaitingCall& call) {
        return call.kind == WaitingCall::Kind::kBarrier && call.barrier == name;
      },
      status);
  barriers_.erase(name);
}

CallId Job::Leave(NodeId node, const absl::Status& reason, absl::Time deadline, absl::Time now) {
  Advance(now);
  const MembershipTable::Member* member = table_.Find(node);
  if (!failure_.ok()) {
    table_.MarkLeft(node);
    ++revision_;
    return Refuse(reason.ok() ? failure_ : absl::OkStatus());
  }
  if (const absl::Status status = CheckMember(node); !status.ok()) return Refuse(status);
  if (!reason.ok()) {
    table_.MarkLeft(node);
    Lost(node, absl::StrFormat("left with an error: %s", reason.message()));
    return Refuse(absl::OkStatus());
  }
  if (member->info.role == Role::kServer) {
    table_.MarkLeft(node);
    if (!work_done_) {
      Lost(node, "left before the workers were done");
      return Refuse(failure_);
    }
    ++revision_;
    return Refuse(absl::OkStatus());
  }
  leaving_.Arrive(MemberOf(node));
  const CallId call_id = calls_.Add({WaitingCall::Kind::kLeave, node, deadline, 0, ""});
  ++revision_;
  AbortWaitsForLeaving();
  if (leaving_.full()) EndWork();
  return call_id;
}

void Job::AbortWaitsForLeaving() {
  if (leaving_.empty()) return;
  for (auto next = barriers_.begin(); next != barriers_.end();) {
    const auto barrier = next++;
    const std::string name = barrier->first;
    const absl::Status status =
        barrier->second.CheckMayFill(leaving_.present(), "barrier '" + name + "'");
    if (!status.ok()) EndBarrier(name, status);
  }
  declarations_.AbortWaitsFor(leaving_.present());
  AnswerDeclarations();
}

void Job::EndWork() {
  work_done_ = true;
  auto view = std::make_shared<Membership>(*table_.membership());
  ++view->epoch;
  for (const NodeInfo& worker : view->workers) table_.MarkLeft(worker.id);
  view->workers.clear();
  last_view_ = std::move(view);
  ++revision_;
  CompleteWhere([](const WaitingCall& call) { return call.kind == WaitingCall::Kind::kLeave; },
                absl::OkStatus());
}

// ---- trouble

void Job::Fail(absl::Status failure) {
  failure_ = std::move(failure);
  ++revision_;
  CompleteWhere([](const WaitingCall&) { return true; }, failure_);
  barriers_.clear();
  declarations_.Abandon();
}

void Job::Lost(NodeId node, const std::string& how) {
  const MembershipTable::Member* member = table_.Find(node);
  if (member == nullptr || !table_.frozen() || !failure_.ok()) return;
  if (work_done_) {
    table_.MarkLeft(node);
    ++revision_;
    return;
  }
  Fail(Aborted("%s %s", MembershipTable::Describe(member->info), how));
}

void Job::Stop(const std::string& why) {
  if (failure_.ok() && !work_done_) Fail(Aborted("%s", why));
}

absl::Status Job::Heartbeat(NodeId node, const NodeProgress& progress, absl::Time now) {
  BDN_RETURN_IF_ERROR(CheckMember(node));
  table_.Heard(node, now);
  table_.Report(node, progress);
  return absl::OkStatus();
}

void Job::ConnectionBroke(NodeId node, absl::Time now) {
  table_.ShortenLease(node, now + options_.broken_connection_grace);
}

void Job::ExpireCalls(absl::Time now) {
  for (const CallId call_id :
       calls_.Where([now](const WaitingCall& call) { return call.deadline <= now; })) {
    const WaitingCall* call = calls_.Find(call_id);
    if (call == nullptr) continue;  // an earlier one failed the job
    EndWait(call_id, absl::DeadlineExceededError(WaitedFor(*call)));
  }
}

void Job::ExpireLeases(absl::Time now) {
  while (failure_.ok()) {
    const MembershipTable::Member* member = table_.Expired(now);
    if (member == nullptr) return;
    Lost(member->info.id, absl::StrFormat("stopped answering %.1f s ago",
                                          absl::ToDoubleSeconds(now - member->last_heard)));
  }
}

void Job::Advance(absl::Time now) {
  ExpireLeases(now);
  ExpireCalls(now);
  if (state() == State::kWaiting && now >= join_deadline_) {
    Fail(DeadlineExceeded("not all nodes joined in time: waiting for %s", table_.Missing()));
  }
}

absl::Time Job::NextDeadline() const {
  absl::Time next = failure_.ok() ? table_.NextExpiry() : absl::InfiniteFuture();
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

Job::View Job::ViewOf(NodeId node) const {
  View view{table_.membership(),
            declarations_.catalogue(),
            declarations_.placement(),
            failure_,
            work_done_,
            {}};
  const MembershipTable::Member* member = table_.Find(node);
  if (member == nullptr || member->info.role != Role::kServer) return view;
  if (work_done_) {
    view.membership = last_view_;
  } else {
    view.leaving = RanksOf(leaving_.present());
  }
  return view;
}

}  // namespace bdn
