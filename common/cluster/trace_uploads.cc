#include "common/cluster/trace_uploads.h"

#include <new>
#include <string_view>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

// A piece is answered once the scheduler has passed it on. A scheduler that cannot for so long ends
// the dump itself.
constexpr absl::Duration kPieceTimeout = absl::Minutes(1);

// Has a recording made. The program must not end because a recording of it was asked for.
absl::StatusOr<std::string> MakeRecording(const TraceUploads::Make& make, const DumpOrder& order) {
  if (make == nullptr) return FailedPrecondition("it records nothing");
  try {
    absl::StatusOr<std::string> recording = make(order);
    if (recording.ok() && (recording->empty() || recording->size() > order.most_bytes)) {
      return Internal("its recording has %d bytes, and %d at most were asked for",
                      recording->size(), order.most_bytes);
    }
    return recording;
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("it has no memory left for a copy of its records");
  }
}

}  // namespace

void TraceUploads::Start(const DumpOrder& order, Make make) {
  MutexLock lock(&mu_);
  if (is_closed_ || order.number == latest_) return;
  latest_ = order.number;
  wanted_ = Wanted{order, std::move(make)};
  if (is_running_) return;
  // It has left its loop, and does nothing more that could wait.
  if (thread_.joinable()) thread_.join();
  is_running_ = true;
  thread_ = StartThread("bdn-dump", [this] {
    while (const std::optional<Wanted> next = TakeNext()) Send(*next);
  });
}

void TraceUploads::Close() {
  std::thread thread;
  {
    MutexLock lock(&mu_);
    is_closed_ = true;
    wanted_.reset();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

std::optional<TraceUploads::Wanted> TraceUploads::TakeNext() {
  MutexLock lock(&mu_);
  std::optional<Wanted> next;
  next.swap(wanted_);
  if (!next) is_running_ = false;
  return next;
}

void TraceUploads::Send(const Wanted& wanted) {
  const absl::StatusOr<std::string> made = MakeRecording(wanted.make, wanted.order);
  std::string_view rest = made.ok() ? std::string_view(*made) : std::string_view();
  absl::Status status;
  TracePiece piece{.number = wanted.order.number, .failure = made.status()};
  while (status.ok() && !piece.is_last) {
    const std::string_view content = rest.substr(0, kMostDumpPieceBytes);
    rest.remove_prefix(content.size());
    piece.content = content;
    piece.is_last = rest.empty();
    bandoneon::control::TracePiece message;
    Write(piece, &message);
    calls_->SetCaller(message.mutable_caller());
    status = calls_->UploadTrace(message, clock_->Now() + kPieceTimeout);
    ++piece.piece;
  }
  // Whoever asked may have gone: that is no trouble of this node.
  if (!status.ok()) LogDebug("sending the recording that was asked for: %s", status.message());
}

}  // namespace bdn
