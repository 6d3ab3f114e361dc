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

// The requests of other threads to a transport's poller, and the descriptor that wakes it.
// Thread-safe.
class PollerMailbox {
 public:
  // A socket that connects, with the name of its connection.
  struct Connector {
    void* socket = nullptr;
    ConnectionId connection = 0;
    int fd = -1;  // on which its last frames came; none before the first
  };
  // A frame to be sent.
  struct Outgoing {
    ConnectionId to;
    Frame frame;
    Transport::SendDone done;
  };
  // All requests that came since the last Take; the last two are states, which stay.
  struct Requests {
    std::vector<Connector> connectors;
    std::vector<std::unique_ptr<ZmqListener>> listeners;
    std::vector<Outgoing> frames;
    std::vector<ConnectionId> ended;  // connectors to be closed, after the frames are sent
    bool have_admissions_changed = false;
    bool is_closed = false;
    bool is_joining = false;
  };

  // Makes a mailbox that owns `wake_fd`, an eventfd.
  explicit PollerMailbox(int wake_fd) : wake_fd_(wake_fd) {}
  ~PollerMailbox();
  PollerMailbox(const PollerMailbox&) = delete;
  PollerMailbox& operator=(const PollerMailbox&) = delete;

  // Hand a socket over. The lock is the full fence that ZeroMQ asks for when a socket changes
  // threads. Return false when closed; the socket then stays the caller's.
  bool Add(Connector connector);
  bool Add(std::unique_ptr<ZmqListener>* listener);
  void Add(Outgoing outgoing);
  void End(ConnectionId connector);
  void SayAdmissionsChanged();
  void Close();
  void SayJoining();

  // For the poller: the descriptor to poll, the requests until now, and a note that it is awake, by
  // our wake or for another reason. Requests from then on write nothing to the descriptor, as the
  // poller takes them before its next wait.
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
