#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MAILBOX_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MAILBOX_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"
#include "common/base/mutex.h"
#include "common/transport/fabric/fabric_wire.h"
#include "common/transport/transport.h"

namespace bdn {

// What other threads ask of a fabric's poller, and the descriptor that wakes it. Thread-safe.
class FabricMailbox {
 public:
  struct Outgoing {
    ConnectionId to;
    Frame frame;
    Transport::SendDone done;
  };
  struct Done {
    Transport::SendDone done;
    absl::Status status;
  };
  struct Requests {
    std::vector<ConnectionId> connectors;
    std::vector<std::pair<ConnectionId, absl::StatusOr<FabricHandshake>>> handshakes;
    std::vector<Outgoing> frames;
    std::vector<ConnectionId> ended;  // connectors, after the frames
    std::vector<ConnectionId> gone;   // of a listener
    std::vector<uint32_t> released;   // windows (FabricNumber) with blocks to tell of
    std::vector<Done> done;
    std::optional<Admission> admission;
    bool is_closed = false;
    bool is_joining = false;
  };

  explicit FabricMailbox(FileDescriptor wake) : wake_(std::move(wake)) {}

  // Runs `change` on what is asked, and wakes the poller.
  template <typename Change>
  void Ask(const Change& change) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    change(&requests_);
    Wake();
  }

  // The poller's: takes what was asked. is_closed and is_joining stay.
  Requests Take();
  int wake_fd() const { return wake_.get(); }
  // False: something was asked, and it must not sleep. Else EndSleep must follow.
  bool BeginSleep();
  void EndSleep(bool was_woken);

 private:
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const FileDescriptor wake_;
  Mutex mu_;
  Requests requests_ ABSL_GUARDED_BY(mu_);
  bool is_asked_ ABSL_GUARDED_BY(mu_) = false;
  bool is_asleep_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MAILBOX_H_
