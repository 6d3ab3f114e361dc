#include "common/transport/throttled.h"

#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/transport/forwarding.h"
#include "common/transport/link_schedule.h"

namespace bdn {
namespace {

// A transport behind a link of a fixed rate. Departures and arrivals wait in two queues, each in
// order of time, for one thread.
class ThrottledTransport final : public ForwardingTransport {
 public:
  ThrottledTransport(std::unique_ptr<Transport> inner, double bytes_per_second, const Clock* clock)
      : ForwardingTransport(std::move(inner)),
        clock_(clock),
        egress_(bytes_per_second),
        ingress_(bytes_per_second),
        thread_(StartThread("bdn-throttle", [this] { RunLink(); })) {}

  ~ThrottledTransport() override {
    Close();
    Join();
  }

  void Start(FrameHandler handler, GoneHandler gone) override {
    handler_ = std::move(handler);
    gone_ = std::move(gone);
    inner()->Start([this](ConnectionId from, Frame frame) { Receive(from, std::move(frame)); },
                   [this](ConnectionId from) { Receive(from, std::nullopt); });
  }

  absl::StatusOr<std::vector<Endpoint>> Listen(const std::string& address) override {
    BDN_ASSIGN_OR_RETURN(std::vector<Endpoint> endpoints, inner()->Listen(address));
    DropFast(&endpoints);
    return endpoints;
  }
  absl::StatusOr<ConnectionId> Connect(const Peer& peer) override {
    Peer slow = peer;
    DropFast(&slow.endpoints);
    if (slow.endpoints.empty() && !peer.endpoints.empty()) {
      return Unimplemented("a link rate cannot slow what the peer offers: %s",
                           SchemesOf(peer.endpoints));
    }
    return inner()->Connect(slow);
  }

  void Send(ConnectionId to, Frame frame, SendDone done) override {
    {
      MutexLock lock(&mu_);
      if (!is_closed_) {
        const absl::Time due = egress_.Depart(clock_->Now(), WireBytes(frame));
        departures_.push_back({due, to, std::move(frame), std::move(done)});
        changed_.Signal();
        return;
      }
    }
    // The inner transport is closed, and ends the send with that.
    inner()->Send(to, std::move(frame), std::move(done));
  }

  void Close() override {
    inner()->Close();  // first, so that frames that still wait find it closed
    MutexLock lock(&mu_);
    is_closed_ = true;
    changed_.Signal();
  }

  void Join() override {
    {
      MutexLock lock(&join_mu_);
      if (thread_.joinable()) thread_.join();
    }
    inner()->Join();
  }

 private:
  // Removes the endpoints that the link's rate cannot slow: a frame that goes by shared memory or a
  // fabric's card would not take as long as the link says.
  static void DropFast(std::vector<Endpoint>* endpoints) {
    std::erase_if(*endpoints, [](const Endpoint& each) {
      return each.scheme == "shm" || each.scheme == "fabric";
    });
  }

  struct Departure {
    absl::Time due;
    ConnectionId to;
    Frame frame;
    SendDone done;
  };
  struct Arrival {
    absl::Time due;
    ConnectionId from;
    std::optional<Frame> frame;  // nothing where the connection is gone
  };

  static uint64_t WireBytes(const Frame& frame) { return kHeaderBytes + frame.payload.size(); }

  void Receive(ConnectionId from, std::optional<Frame> frame) {
    MutexLock lock(&mu_);
    if (is_closed_) return;
    // A connection's end takes no time on the wire, but waits in the queue behind the frames of its
    // connection.
    const uint64_t bytes = frame.has_value() ? WireBytes(*frame) : 0;
    const absl::Time due = ingress_.Arrive(clock_->Now(), bytes);
    arrivals_.push_back({due, from, std::move(frame)});
    changed_.Signal();
  }

  // Moves the items that are due into the lists, or waits until one is. Returns false when closed:
  // then `departures` has every frame that had not left.
  bool WaitForDue(std::deque<Departure>* departures, std::deque<Arrival>* arrivals)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(&mu_);
    while (!is_closed_) {
      const absl::Time now = clock_->Now();
      TakeDue(now, &departures_, departures);
      TakeDue(now, &arrivals_, arrivals);
      if (!departures->empty() || !arrivals->empty()) return true;
      absl::Time next = absl::InfiniteFuture();
      if (!departures_.empty()) next = departures_.front().due;
      if (!arrivals_.empty()) next = std::min(next, arrivals_.front().due);
      clock_->WaitUntil(&changed_, &mu_, next);
    }
    // Frames not yet sent go to the closed inner transport, which runs their SendDone. Arrivals
    // have no callback that must run.
    departures->swap(departures_);
    arrivals_.clear();
    return false;
  }

  template <typename Item>
  static void TakeDue(absl::Time now, std::deque<Item>* from, std::deque<Item>* to) {
    while (!from->empty() && from->front().due <= now) {
      to->push_back(std::move(from->front()));
      from->pop_front();
    }
  }

  void Hand(Arrival arrival) {
    if (arrival.frame.has_value()) {
      handler_(arrival.from, *std::move(arrival.frame));
    } else if (gone_) {
      gone_(arrival.from);
    }
  }

  void RunLink() {
    bool is_open = true;
    while (is_open) {
      std::deque<Departure> departures;
      std::deque<Arrival> arrivals;
      is_open = WaitForDue(&departures, &arrivals);
      for (Departure& departure : departures) {
        inner()->Send(departure.to, std::move(departure.frame), std::move(departure.done));
      }
      for (Arrival& arrival : arrivals) Hand(std::move(arrival));
    }
  }

  const Clock* const clock_;
  FrameHandler handler_;  // not changed after Start
  GoneHandler gone_;      // not changed after Start

  Mutex mu_;
  CondVar changed_;
  LinkSchedule egress_ ABSL_GUARDED_BY(mu_);
  LinkSchedule ingress_ ABSL_GUARDED_BY(mu_);
  std::deque<Departure> departures_ ABSL_GUARDED_BY(mu_);
  std::deque<Arrival> arrivals_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;

  Mutex join_mu_;
  std::thread thread_ ABSL_GUARDED_BY(join_mu_);  // last: it uses everything above
};

}  // namespace

std::unique_ptr<Transport> MakeThrottled(std::unique_ptr<Transport> inner, double bytes_per_second,
                                         const Clock* clock) {
  if (bytes_per_second <= 0) return inner;
  return std::make_unique<ThrottledTransport>(std::move(inner), bytes_per_second, clock);
}

}  // namespace bdn
