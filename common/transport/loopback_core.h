#ifndef BANDONEON_COMMON_TRANSPORT_LOOPBACK_CORE_H_
#define BANDONEON_COMMON_TRANSPORT_LOOPBACK_CORE_H_

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/fault_script.h"
#include "common/transport/transport.h"

namespace bdn {

// What is behind scripted_loopback.h, whose comments say what each call does: endpoints, the links
// between them, and the queue of their events. All under one lock; callbacks run without it.
class LoopbackCore {
 public:
  using EndpointId = uint64_t;

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

  bool Step();
  bool StepFrame(const FaultScript::Match& match);
  bool WaitAndStep();
  void Interrupt();
  size_t num_pending() const;
  std::vector<FrameHeader> PendingFrames() const;

  void AddRule(FaultScript::Match match, Fault fault, int times);
  size_t Release();
  void ClearFaults();
  void Randomize(uint64_t seed, const FaultScript::Chances& chances);

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

  mutable Mutex mu_;
  CondVar changed_;  // an event came, a callback returned, or Interrupt
  EndpointId last_endpoint_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<EndpointId, EndpointState> endpoints_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, EndpointId> listeners_ ABSL_GUARDED_BY(mu_);
  std::multimap<std::string, std::shared_ptr<Link>> unbound_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> queue_ ABSL_GUARDED_BY(mu_);
  std::deque<Event> held_ ABSL_GUARDED_BY(mu_);
  FaultScript script_ ABSL_GUARDED_BY(mu_);
  bool is_interrupted_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_LOOPBACK_CORE_H_
