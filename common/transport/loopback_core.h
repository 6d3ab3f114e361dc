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

// Faults that a network in one process is to have, for tests of what a worse network does. Called
// under the network's lock, and so must not call it.
class LoopbackFaults {
 public:
  enum class Fate { kDeliver, kDrop, kDuplicate, kHold, kCut };

  virtual ~LoopbackFaults() = default;
  // Decides about a frame that is being sent, and may put another payload into it. kHold keeps it
  // back until Release; kCut ends its connection, for both ends.
  virtual Fate Decide(Frame* frame) = 0;
  // Returns the index of the event to run next, of `size` pending ones. REQUIRES: size > 0.
  virtual size_t ChooseNext(size_t size) = 0;
};

// A network in one process, without a thread: transports that reach each other by
// "loopback://name". Its events (a frame's delivery, a send's completion, a connection's end) wait
// in one queue until somebody steps. The caller of a step runs the callbacks, on its own thread and
// not under the network's lock. Payloads are shared, never copied. Thread-safe. Outlives its
// transports.
class LoopbackCore {
 public:
  using EndpointId = uint64_t;

  // Makes a network whose `faults` are borrowed; with null every frame is delivered, in order.
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

  // Runs the next event. Returns false when there was none.
  bool Step();
  // Delivers the oldest pending frame that matches, out of turn. Returns false when there was none.
  bool StepFrame(const std::function<bool(const FrameHeader& header)>& match);
  // Waits for an event and runs it. Returns false once Interrupt was called.
  bool WaitAndStep();
  void Interrupt();
  size_t num_pending() const;
  // Returns the frames on their way, oldest first; not those that are held.
  std::vector<FrameHeader> PendingFrames() const;
  // Puts the held frames at the end of the queue, and returns how many they were.
  size_t Release();

 private:
  struct PendingSend {
    Frame frame;
    Transport::SendDone done;
  };

  // A connection with its two ends. Side 0 connected; side 1 listens, and is 0 until a listener is
  // there.
  struct Link {
    EndpointId endpoint[2] = {0, 0};
    ConnectionId id[2] = {0, 0};
    bool is_open = true;
    std::deque<PendingSend> waiting;  // sends of side 0 that wait for a listener
  };

  struct LinkEnd {
    std::shared_ptr<Link> link;  // shared by its two ends alone
    int side = 0;
  };

  struct Event {
    enum class Kind { kFrame, kGone, kDone };
    EndpointId endpoint = 0;  // the one whose callback runs
    Kind kind = Kind::kDone;
    // A frame or the end of a connection has these two:
    ConnectionId from = 0;
    Frame frame = {};
    // A completion has these two:
    Transport::SendDone done = {};
    absl::Status status = {};
  };

  struct EndpointState {
    Transport::FrameHandler handler;  // not changed after Start
    Transport::GoneHandler gone;      // not changed after Start
    bool is_closed = false;
    int running = 0;      // callbacks that run now, on any thread
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
  // Ends a link, and tells its listener if that has a GoneHandler.
  void EndLink(Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the sends that wait for a listener on this link.
  void EndWaiting(Link* link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Event TakeNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Runs one event's callback on this thread; the other three do so for one kind of event.
  void Run(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunFrame(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunGone(const Event& event) ABSL_LOCKS_EXCLUDED(mu_);
  void RunDone(Event event) ABSL_LOCKS_EXCLUDED(mu_);

  LoopbackFaults* const faults_;
  mutable Mutex mu_;
  CondVar changed_;  // signalled when an event comes, a callback has returned, or by Interrupt
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
