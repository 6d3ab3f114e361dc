#ifndef BANDONEON_WORKER_HOST_DAEMON_CALLS_H_
#define BANDONEON_WORKER_HOST_DAEMON_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/buffer.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/host/daemon_channel.h"

namespace bandoneon::host {
class Answer;
class Call;
}  // namespace bandoneon::host

namespace bdn {

// The calls of a process to its host daemon. Each blocks its caller until the daemon has answered.
// Thread-safe.
class DaemonCalls {
 public:
  // `channel` and `clock` are borrowed. `arena` is the memory that the daemon may read.
  DaemonCalls(std::shared_ptr<ShmArena> arena, DaemonChannel* channel, const Clock* clock);
  DaemonCalls(const DaemonCalls&) = delete;
  DaemonCalls& operator=(const DaemonCalls&) = delete;

  // Makes a call, and returns the daemon's answer, or the error that it answers. The answer's data
  // is copied to `out`, whose size it must have. DeadlineExceeded: the daemon does not answer
  // within `timeout` and some more seconds.
  absl::StatusOr<bandoneon::host::Answer> Ask(bandoneon::host::Call call, absl::Duration timeout,
                                              std::span<std::byte> out = {});
  // Returns a copy of the bytes in memory that the daemon can read, and its place.
  // ResourceExhausted: there is no such memory.
  absl::StatusOr<Buffer> Lend(ByteSpan bytes, HostPlace* place);

  // Handlers of the channel: OnAnswer takes an answer, Fail ends all calls.
  absl::Status OnAnswer(bandoneon::host::Answer answer);
  void Fail(const absl::Status& status);

 private:
  // A caller that blocks until its answer has come.
  struct Caller;

  BufferPool pool_;
  DaemonChannel* const channel_;
  const Clock* const clock_;

  Mutex mu_;
  CondVar changed_;
  absl::Status over_ ABSL_GUARDED_BY(mu_);  // why no call is answered any more
  std::map<uint64_t, Caller*> callers_ ABSL_GUARDED_BY(mu_);
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_DAEMON_CALLS_H_
