#include "scheduler/watch_stream.h"

#include <algorithm>

#include "common/cluster/control_messages.h"

namespace bdn {

namespace wire = bandoneon::control;

void WatchStreams::StepAll() {
  MutexLock lock(&mu_);
  for (WatchStream* stream : accepted_) stream->Step();
  changed_.SignalAll();
}

bool WatchStreams::AwaitFailureDelivered(absl::Duration timeout) {
  const absl::Time deadline = core_->clock()->Now() + timeout;
  MutexLock lock(&mu_);
  const auto owed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::any_of(accepted_.begin(), accepted_.end(),
                       [](const WatchStream* stream) { return stream->owes_failure(); });
  };
  while (owed()) {
    if (!core_->clock()->WaitUntil(&changed_, &mu_, deadline)) return !owed();
  }
  return true;
}

WatchStream::~WatchStream() {
  MutexLock lock(&all_->mu_);
  all_->accepted_.erase(this);
  all_->changed_.SignalAll();
}

void WatchStream::OnRequest(const grpc::ByteBuffer& request) {
  absl::Status status = ParseRequest(request, &caller_);
  if (status.ok()) status = core_->CheckCaller(caller_);
  MutexLock lock(&all_->mu_);
  accepted_ = status.ok();
  if (!accepted_) return Finish(status);
  all_->accepted_.insert(this);
  Step();
}

void WatchStream::OnWritten(bool ok) {
  MutexLock lock(&all_->mu_);
  writing_ = false;
  all_->changed_.SignalAll();
  if (ok) Step();
  // OnDone tells of a broken connection.
  if ((!ok || over_) && !finishing_ && !writing_) Finish(absl::OkStatus());
}

void WatchStream::OnDone(bool cancelled) {
  bool broke;
  {
    MutexLock lock(&all_->mu_);
    over_ = true;
    broke = accepted_ && cancelled && !sent_.failure;
    if (!writing_ && !finishing_) Finish(absl::OkStatus());
  }
  if (broke) core_->host()->ConnectionBroke(caller_.node());
}

bool WatchStream::NextEvent(wire::Event* event) {
  const Job::View view = core_->host()->ViewOf(caller_.node());
  if (view.membership != nullptr && view.membership != sent_.membership) {
    sent_.membership = view.membership;
    Write(*view.membership, event->mutable_membership());
    return true;
  }
  if (view.catalogue->version > 0 && view.catalogue != sent_.catalogue) {
    sent_.catalogue = view.catalogue;
    Write(*view.catalogue, event->mutable_catalogue());
    return true;
  }
  // After the catalogue of the same view, whose keys it places.
  if (view.placement->version().catalogue > 0 && view.placement != sent_.placement) {
    sent_.placement = view.placement;
    Write(*view.placement, event->mutable_placement());
    return true;
  }
  if (view.leaving.size() > sent_.leaving) {
    sent_.leaving = view.leaving.size();
    Write(view.leaving, event->mutable_leaving());
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
  return false;
}

void WatchStream::Step() {
  if (writing_ || finishing_ || over_) return;
  bool left = false;
  core_->host()->Read([&](const Job& job, absl::Time) {
    const MembershipTable::Member* member = job.table().Find(caller_.node());
    left = member == nullptr || member->left;
  });
  if (left || sent_.failure) return Finish(absl::OkStatus());
  wire::Event event;
  if (!NextEvent(&event)) return;
  writing_ = true;
  call_->Write(ToBuffer(event));
}

void WatchStream::Finish(const absl::Status& status) {
  finishing_ = true;
  call_->Finish(status);
}

}  // namespace bdn
