#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_POLLER_MAILBOX_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_POLLER_MAILBOX_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/transport/transport.h"
#include "common/transport/zmq/zmq_listener.h"

namespace bdn {

// What other threads ask of a transport's poller, and the descriptor that wakes it. Thread-safe.
class PollerMailbox {
 public:
  struct Connector {
    void* socket = nullptr;
    ConnectionId connection = 0;
  };
  struct Outgoing {
    ConnectionId to;
    Frame frame;
    Transport::SendDone done;
  };
  struct Requests {
    std::vector<Connector> connectors;
    std::vector<std::unique_ptr<ZmqListener>> listeners;
    std::vector<Outgoing> frames;
    std::vector<ConnectionId> ended;  // connectors that are to be closed, after the frames
    bool have_admissions_changed = false;
    bool is_closed = false;
    bool is_joining = false;
  };

  // `wake_fd` is an eventfd, and its own from here on.
  explicit PollerMailbox(int wake_fd) : wake_fd_(wake_fd) {}
  ~PollerMailbox();
  PollerMailbox(const PollerMailbox&) = delete;
  PollerMailbox& operator=(const PollerMailbox&) = delete;

  // Hand a socket over, with the full fence that it takes to change threads: the lock's. False, and
  // it stays the caller's, when closed.
  bool Add(Connector connector);
  bool Add(std::unique_ptr<ZmqListener>* listener);
  void Add(Outgoing outgoing);
  void End(ConnectionId connector);
  void SayAdmissionsChanged();
  void Close();
  void SayJoining();

  // The poller's: what to poll, what was asked until now, and that it is awake (woken by us or not):
  // what is asked from now on is taken before the next wait.
  int wake_fd() const { return wake_fd_; }
  Requests Take();
  void SetAwake(bool was_woken);

 private:
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int wake_fd_;
  Mutex mu_;
  Requests requests_ ABSL_GUARDED_BY(mu_);
  bool is_woken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_POLLER_MAILBOX_H_
