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

// A queue of requests from other threads to a fabric's poller, with the file descriptor that wakes
// the poller. Thread-safe.
class FabricMailbox {
 public:
  // A frame to be sent, with its callback.
  struct Outgoing {
    ConnectionId to;
    Frame frame;
    Transport::SendDone done;
  };
  // A callback that is due on the poller's thread.
  struct Done {
    Transport::SendDone done;
    absl::Status status;
  };
  // All requests since the poller last took them. FabricPoller::Apply does them in its own order.
  struct Requests {
    std::vector<ConnectionId> connectors;  // made by Connect
    std::vector<std::pair<ConnectionId, absl::StatusOr<FabricHandshake>>> handshakes;
    std::vector<Outgoing> frames;
    std::vector<ConnectionId> ended;  // connectors that Disconnect ended
    std::vector<ConnectionId> gone;   // a listener's connections that the network has lost
    std::vector<uint32_t> released;   // numbers of windows (FabricNumber) with blocks to give back
    std::vector<Done> done;
    std::optional<Admission> admission;
    bool is_closed = false;
    bool is_joining = false;
  };

  explicit FabricMailbox(FileDescriptor wake) : wake_(std::move(wake)) {}

  // Runs `change` on the requests, and wakes the poller.
  template <typename Change>
  void Ask(const Change& change) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    change(&requests_);
    Wake();
  }

  // For the poller: takes all requests. is_closed and is_joining stay set.
  Requests Take();
  int wake_fd() const { return wake_.get(); }
  // For the poller, before it blocks on wake_fd(). False: there are requests, and it must not
  // block. True: EndSleep must follow.
  bool BeginSleep();
  void EndSleep(bool was_woken);

 private:
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const FileDescriptor wake_;
  Mutex mu_;
  Requests requests_ ABSL_GUARDED_BY(mu_);
  bool is_asked_ ABSL_GUARDED_BY(mu_) = false;  // since the last Take
  bool is_asleep_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MAILBOX_H_
