#include "common/transport/shm/shm_connection.h"

#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

uint64_t BytesOf(const Frame& frame) { return kHeaderBytes + frame.payload.size(); }

}  // namespace

ShmConnection::Sent ShmConnection::Send(Frame frame, Transport::SendDone* done) {
  // A copy takes long, so it is made before the lock is taken. Where there is no memory now,
  // TrySend tries again later.
  (void)owner_.copies->Replace(&frame.payload);
  MutexLock lock(&mu_);
  if (is_gone_) return {.status = Gone()};
  // Otherwise the frame goes behind those that wait: overtaken again and again, they might wait for
  // ever.
  if (waiting_.empty()) {
    const TryResult result = TrySend(&frame);
    if (result == TryResult::kSent) return {};
    if (result == TryResult::kBroken) return {.status = Broken(), .broken = channel_};
  }
  const uint64_t bytes = BytesOf(frame);
  if (absl::Status may = CheckMayWait(bytes); !may.ok()) return {.status = std::move(may)};
  waiting_bytes_ += bytes;
  owner_.counters->bytes_queued.Add(bytes);
  waiting_.push_back({std::move(frame), std::move(*done)});
  return {.waits = true};
}

ShmConnection::TryResult ShmConnection::TrySend(Frame* frame) {
  if (channel_ == nullptr || !owner_.copies->Replace(&frame->payload)) return TryResult::kWait;
  switch (channel_->Send(*frame)) {
    case ShmChannel::SendResult::kFull:
      return TryResult::kWait;
    case ShmChannel::SendResult::kBroken:
      return TryResult::kBroken;
    case ShmChannel::SendResult::kSent:
      break;
  }
  owner_.counters->frames_sent.Add();
  owner_.counters->bytes_sent.Add(BytesOf(*frame));
  return TryResult::kSent;
}

absl::Status ShmConnection::CheckMayWait(uint64_t bytes) const {
  const ShmOptions& options = *owner_.options;
  const bool is_too_much = waiting_bytes_ + bytes > options.max_bytes_queued ||
                           waiting_.size() >= static_cast<size_t>(options.max_frames_queued);
  // Peers of a listener are many and may never read again; the frames of a connector are bounded by
  // the layers above.
  if (is_connector_ || !is_too_much) return absl::OkStatus();
  return ResourceExhausted("send: %d frames of %d bytes wait for connection %d already",
                           waiting_.size(), waiting_bytes_, id_);
}

ShmConnection::Flushed ShmConnection::Flush() {
  Flushed flushed;
  MutexLock lock(&mu_);
  while (!waiting_.empty()) {
    Outgoing& next = waiting_.front();
    const uint64_t bytes = BytesOf(next.frame);
    const TryResult result = TrySend(&next.frame);
    if (result == TryResult::kWait) {
      flushed.is_stuck = true;
      break;
    }
    waiting_bytes_ -= bytes;
    owner_.counters->bytes_queued.Remove(bytes);
    // Returned and not run: no callback runs under a lock.
    flushed.done.push_back(
        {std::move(next.done), result == TryResult::kSent ? absl::OkStatus() : Broken()});
    waiting_.pop_front();
  }
  return flushed;
}

std::shared_ptr<ShmChannel> ShmConnection::channel() const {
  MutexLock lock(&mu_);
  return channel_;
}

void ShmConnection::Connect(std::shared_ptr<ShmChannel> channel) {
  MutexLock lock(&mu_);
  channel_ = std::move(channel);
}

std::shared_ptr<ShmChannel> ShmConnection::Disconnect() {
  MutexLock lock(&mu_);
  return std::exchange(channel_, nullptr);
}

ShmConnection::Closed ShmConnection::Close() {
  Closed closed;
  MutexLock lock(&mu_);
  is_gone_ = true;
  closed.channel = std::exchange(channel_, nullptr);
  for (Outgoing& each : std::exchange(waiting_, {})) {
    closed.done.push_back({std::move(each.done), Gone()});
  }
  owner_.counters->bytes_queued.Remove(std::exchange(waiting_bytes_, 0));
  return closed;
}

absl::Status ShmConnection::Gone() const { return Unavailable("send: connection %d is gone", id_); }

absl::Status ShmConnection::Broken() const {
  return Unavailable("send: connection %d has broken", id_);
}

}  // namespace bdn
