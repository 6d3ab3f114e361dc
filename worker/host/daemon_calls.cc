#include "worker/host/daemon_calls.h"

#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

// The time in which the daemon may answer that a call's time is over.
constexpr absl::Duration kAnswerGrace = absl::Seconds(10);

}  // namespace

struct DaemonCalls::Caller {
  bool is_answered = false;
  wire::Answer answer;
  std::span<std::byte> out;  // gets the answer's data
};

DaemonCalls::DaemonCalls(std::shared_ptr<ShmArena> arena, DaemonChannel* channel,
                         const Clock* clock)
    : pool_(ArenaOrHeap(std::move(arena))), channel_(channel), clock_(clock) {}

void DaemonCalls::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  over_ = status;
  changed_.SignalAll();
}

absl::StatusOr<wire::Answer> DaemonCalls::Ask(wire::Call call, absl::Duration timeout,
                                              std::span<std::byte> out) {
  Caller caller{.out = out};
  call.set_timeout_ms(TimeoutToMilliseconds(timeout));
  const absl::Time deadline = clock_->Now() + timeout + kAnswerGrace;
  wire::ToDaemon message;
  {
    MutexLock lock(&mu_);
    if (!over_.ok()) return over_;
    call.set_id(++last_call_);
    // Before the call is sent, as the answer may come at once.
    callers_[call.id()] = &caller;
  }
  const uint64_t id = call.id();
  *message.mutable_call() = std::move(call);
  channel_->Send(message);
  MutexLock lock(&mu_);
  while (!caller.is_answered && over_.ok() && clock_->Now() < deadline) {
    clock_->WaitUntil(&changed_, &mu_, deadline);
  }
  // `caller` is on this stack: after this no answer can find it.
  callers_.erase(id);
  if (!caller.is_answered) {
    if (!over_.ok()) return over_;
    return DeadlineExceeded("the daemon of this host, at %s, does not answer", channel_->address());
  }
  BDN_RETURN_IF_ERROR(Read(caller.answer.status()));
  return std::move(caller.answer);
}

absl::Status DaemonCalls::OnAnswer(wire::Answer answer) {
  const uint64_t id = answer.id();
  const bool has_data = answer.has_data();
  absl::Status status;
  {
    MutexLock lock(&mu_);
    const auto caller = callers_.find(id);
    if (caller != callers_.end()) {
      const std::span<std::byte> out = caller->second->out;
      if (has_data && !out.empty()) {
        // The copy is made under the lock, so that the caller, and the array that `out` borrows,
        // cannot go meanwhile.
        const auto data = channel_->Resolve(Read(answer.data()), out.size());
        status = data.status();
        if (data.ok()) std::memcpy(out.data(), data->span.data(), out.size());
      }
      caller->second->answer = std::move(answer);
      caller->second->is_answered = true;
      callers_.erase(caller);
      changed_.SignalAll();
    }
  }
  // Also for a caller that has given up: else the daemon would keep the data for ever.
  if (has_data) {
    wire::ToDaemon taken;
    taken.set_taken(id);
    channel_->Send(taken);
  }
  return status;
}

absl::StatusOr<Buffer> DaemonCalls::Lend(ByteSpan bytes, HostPlace* place) {
  const Buffer copy = pool_.Get(bytes.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  const auto found = channel_->Find(copy.span());
  if (!found.has_value()) {
    return ResourceExhausted("%d bytes of shared memory for the daemon to read are not to be had",
                             bytes.size());
  }
  *place = *found;
  return copy;
}

}  // namespace bdn
