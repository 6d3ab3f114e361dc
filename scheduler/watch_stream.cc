#include "scheduler/watch_stream.h"

#include <algorithm>
#include <vector>

#include "common/base/fault_point.h"
#include "common/cluster/control_messages.h"

namespace bdn {

namespace wire = bandoneon::control;

void WatchStreams::Step(Role role) {
  MutexLock lock(&mu_);
  for (WatchStream* stream : accepted_[role]) stream->Step();
  changed_.SignalAll();
}

bool WatchStreams::OwesEnd(const std::vector<NodeId>& nodes) const {
  for (const auto& [role, streams] : accepted_) {
    for (const WatchStream* stream : streams) {
      if (stream->owes_end()) return true;
    }
  }
  return std::any_of(nodes.begin(), nodes.end(),
                     [this](NodeId node)
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !watchers_.contains(node); });
}

bool WatchStreams::AwaitNodesTold(absl::Duration timeout) {
  const absl::Time deadline = core_->clock()->Now() + timeout;
  // Before a job has begun, its nodes are told by the answers to their joins.
  std::vector<NodeId> nodes;
  core_->host()->Read([&](const Job& job, absl::Time) {
    if (!job.table().frozen()) return;
    for (const auto& [id, member] : job.table().members()) {
      if (member.is_here()) nodes.push_back(id);
    }
  });
  // JobHost's lock was released above: the streams' lock is taken before it, never inside.
  MutexLock lock(&mu_);
  while (OwesEnd(nodes)) {
    if (!core_->clock()->WaitUntil(&changed_, &mu_, deadline)) return !OwesEnd(nodes);
  }
  return true;
}

WatchStream::~WatchStream() {
  MutexLock lock(&all_->mu_);
  all_->accepted_[role_].erase(this);
  all_->changed_.SignalAll();
}

void WatchStream::OnRequest(const grpc::ByteBuffer& request) {
  absl::Status status = ParseRequest(request, &caller_);
  if (status.ok()) status = core_->CheckCaller(caller_);
  Role role = Role::kWorker;
  core_->host()->Read([&](const Job& job, absl::Time) {
    // A node that is not of this job gets no stream, and its role does not matter.
    const MembershipTable::Member* member = job.table().Find(caller_.node());
    if (member != nullptr) role = member->info.role;
  });
  MutexLock lock(&all_->mu_);
  accepted_ = status.ok();
  role_ = role;
  if (!accepted_) return Finish(status);
  all_->accepted_[role_].insert(this);
  all_->watchers_.insert(caller_.node());
  all_->changed_.SignalAll();
  Step();
}

void WatchStream::OnWritten(bool ok) {
  MutexLock lock(&all_->mu_);
  writing_ = false;
  all_->changed_.SignalAll();
  if (ok) Step();
  // A broken connection is reported by OnDone; here only the answer is still owed.
  if ((!ok || over_) && !finishing_ && !writing_) Finish(absl::OkStatus());
}

void WatchStream::OnDone(bool cancelled) {
  bool broke;
  {
    MutexLock lock(&all_->mu_);
    over_ = true;
    // A node that was told of the failure may go without being lost.
    broke = accepted_ && cancelled && !sent_.failure;
    if (!writing_ && !finishing_) Finish(absl::OkStatus());
  }
  if (broke) core_->host()->ConnectionBroke(caller_.node());
}

bool WatchStream::NextEvent(const Job::View& view, wire::Event* event) {
  // One event at a time, in a fixed order; the next one follows when this is written.
  if (view.membership != nullptr && view.membership != sent_.membership) {
    sent_.membership = view.membership;
    Write(*view.membership, event->mutable_membership());
    return true;
  }
  if (view.placed.catalogue > sent_.placed.catalogue) {
    sent_.placed = view.placed;
    Write(view.placed, event->mutable_placed());
    return true;
  }
  if (view.leaving > sent_.leaving) {
    // The ranks may be more than the view counted, so the count goes by what is sent.
    const std::vector<Rank> ranks = core_->host()->LeavingRanks(sent_.leaving);
    sent_.leaving += ranks.size();
    Write(ranks, event->mutable_leaving());
    return true;
  }
  if (view.candidates != sent_.candidates) {
    sent_.candidates = view.candidates;
    event->mutable_candidates()->set_ready(static_cast<uint32_t>(view.candidates));
    return true;
  }
  if (!view.failure.ok() && !sent_.failure) {
    sent_.failure = true;
    Write(view.failure, event->mutable_failure());
    return true;
  }
  if (view.done && !sent_.done) {
    sent_.done = true;
    event->mutable_done();
    return true;
  }
  const auto order = all_->dumps_->OrderFor(caller_.node());
  if (order && order->number != sent_.dump) {
    sent_.dump = order->number;
    Write(*order, event->mutable_dump());
    return true;
  }
  return false;
}

void WatchStream::Step() {
  if (writing_ || finishing_ || over_) return;
  const Job::View view = core_->host()->ViewOf(caller_.node());
  // A node that has left, or was told that the job failed, is told nothing more: the stream ends.
  if (view.left || sent_.failure) return Finish(absl::OkStatus());
  wire::Event event;
  if (!NextEvent(view, &event)) return;
  writing_ = true;
  call_->Write(ToBuffer(event));
  // The first membership is that of the answer to the join.
  if (event.has_membership() && event.membership().epoch() > 1) FaultPoint("epoch.some");
}

void WatchStream::Finish(const absl::Status& status) {
  finishing_ = true;
  call_->Finish(status);
}

}  // namespace bdn
