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

// The calls of a process to its host's daemon: each blocks its caller until the daemon has
// answered. Thread-safe.
class DaemonCalls {
 public:
  // All are borrowed. `arena` is the memory that the daemon may read.
  DaemonCalls(std::shared_ptr<ShmArena> arena, DaemonChannel* channel, const Clock* clock);
  DaemonCalls(const DaemonCalls&) = delete;
  DaemonCalls& operator=(const DaemonCalls&) = delete;

  // Makes a call, and returns the daemon's answer, OK or why not. Its data is copied to `out`,
  // whose size it has. DeadlineExceeded: the daemon does not answer, though it had `timeout` and
  // some time more.
  absl::StatusOr<bandoneon::host::Answer> Ask(bandoneon::host::Call call, absl::Duration timeout,
                                              std::span<std::byte> out = {});
  // Returns a copy of bytes that the daemon can read, and where it is. ResourceExhausted: there is
  // no memory.
  absl::StatusOr<Buffer> Lend(ByteSpan bytes, HostPlace* place);

  // Handlers of the channel.
  absl::Status OnAnswer(bandoneon::host::Answer answer);
  void Fail(const absl::Status& status);

 private:
  // A blocking caller, until its answer is here.
  struct Caller;

  BufferPool pool_;
  DaemonChannel* const channel_;
  const Clock* const clock_;

  Mutex mu_;
  CondVar changed_;
  absl::Status over_ ABSL_GUARDED_BY(mu_);  // why nothing is answered any more
  std::map<uint64_t, Caller*> callers_ ABSL_GUARDED_BY(mu_);
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_DAEMON_CALLS_H_
