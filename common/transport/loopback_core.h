#ifndef BANDONEON_COMMON_TRANSPORT_LOOPBACK_CORE_H_
#define BANDONEON_COMMON_TRANSPORT_LOOPBACK_CORE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/transport.h"

namespace bdn {

// Changes what a network in one process delivers: for tests of what a worse network does. Called under
// the network's lock, and so must not call it.
class LoopbackFaults {
 public:
  enum class Fate { kDeliver, kDrop, kDuplicate, kHold, kCut };

  virtual ~LoopbackFaults() = default;
  // Decides about a frame that is being sent, and may put another payload into it. kHold keeps it back
  // until Release; kCut ends its connection, both ways.
  virtual Fate Decide(Frame* frame) = 0;
  // Says which of `size` pending events is next. REQUIRES: size > 0.
  virtual size_t ChooseNext(size_t size) = 0;
};

// An in-process network without a thread: transports that reach each other by "loopback://name", and
// whose events (a frame's delivery, a send's completion) wait in one queue until somebody steps. What
// steps runs the callbacks, on its own thread and not under the network's lock. Payloads are shared,
// never copied. Thread-safe. Outlives its transports.
class LoopbackCore {
 public:
  using EndpointId = uint64_t;

  // `faults` is borrowed; null: everything is delivered, in order.
  explicit LoopbackCore(LoopbackFaults* faults = nullptr) : faults_(faults) {}
  LoopbackCore(const LoopbackCore&) = delete;
  LoopbackCore& operator=(const LoopbackCore&) = delete;

  std::unique_ptr<Transport> MakeTransport();

  // ---- For its transports ----

  EndpointId AddEndpoint() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    endpoints_[++last_endpoint_];
    return last_endpoint_;
  }

  void RemoveEndpoint(EndpointId id) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    endpoints_.erase(id);
  }

  void Start(EndpointId id, Transport::FrameHandler handler, Transport::GoneHandler gone)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    endpoints_.at(id).handler = std::move(handler);
    endpoints_.at(id).gone = std::move(gone);
  }

  absl::StatusOr<std::string> Listen(EndpointId id, const std::string& address);
  absl::StatusOr<ConnectionId> Connect(EndpointId id, const std::string& address);
  void Disconnect(EndpointId id, ConnectionId connection);
  void Send(EndpointId id, ConnectionId to, Frame frame, Transport::SendDone done);
  void Close(EndpointId id);
  void Join(EndpointId id);

  TransportStats stats(EndpointId id) const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    return endpoints_.at(id).stats;
  }

  // ---- Delivery ----

  // Runs the next event. False when there was none.
  bool Step();
  // Delivers the oldest pending frame that matches, out of turn. False when there was none.
  bool StepFrame(const std::function<bool(const FrameHeader& header)>& match);
  // Waits for an event and runs it; false once Interrupt was called.
  bool WaitAndStep();
  void Interrupt();
  size_t num_pending() const;
  // Frames on their way, oldest first; not those that are held.
  std::vector<FrameHeader> PendingFrames() const;
  // Puts the frames that are held at the end of the queue; returns how many.
  size_t Release();

 private:
  struct PendingSend {
    Frame frame;
    Transport::SendDone done;
  };

  // Two ends that know each other. Side 0 connected, side 1 listens (and is 0 until somebody does).
  struct Link {
    EndpointId endpoint[2] = {0, 0};
    ConnectionId id[2] = {0, 0};
    bool is_open = true;
    std::deque<PendingSend> waiting;  // for a listener, from side 0
  };

  struct LinkEnd {
    std::shared_ptr<Link> link;  // shared by its two ends alone
    int side = 0;
  };

  struct Event {
    enum class Kind { kFrame, kGone, kDone };
    EndpointId endpoint = 0;  // whose callback it is
    Kind kind = Kind::kDone;
    // A frame, or its connection's end:
    ConnectionId from = 0;
    Frame frame = {};
    // Or a completion:
    Transport::SendDone done = {};
    absl::Status status = {};
  };

  struct EndpointState {
    Transport::FrameHandler handler;  // const after Start
    Transport::GoneHandler gone;      // as well
    bool is_closed = false;
    int running = 0;      // callbacks on some thread now
    int outstanding = 0;  // Sends whose `done` has not returned
    ConnectionId last_connection = 0;
    std::map<ConnectionId, LinkEnd> ends;
    TransportStats stats;
  };

  // Puts a frame that one end of an open link sent, and its completion, into the queue.
  void Enqueue(Link* link, int side, PendingSend send) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EnqueueDone(EndpointId owner, Transport::SendDone done, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EnqueueFrame(EndpointId to, ConnectionId from, Frame frame)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BindListener(const std::shared_ptr<Link>& link, EndpointId listener)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The link is over: its listener, if it wants to know, is told.
  void EndLink(Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What waits on it for a listener ends.
  void EndWaiting(Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Event TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Run one event's callback on this thread.
  void Run(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunFrame(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunGone(const Event& event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunDone(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  LoopbackFaults* const faults_;
  mutable Mutex mu_;
  CondVar changed_;  // an event came, a callback returned, or Interrupt
  EndpointId last_endpoint_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<EndpointId, EndpointState> endpoints_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, EndpointId> listeners_ ABSL_GUARDED_BY(mu_);
  std::multimap<std::string, std::shared_ptr<Link>> unbound_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> queue_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> held_ ABSL_GUARDED_BY(mu_);
  bool is_interrupted_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_LOOPBACK_CORE_H_
