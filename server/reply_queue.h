#ifndef BANDONEON_SERVER_REPLY_QUEUE_H_
#define BANDONEON_SERVER_REPLY_QUEUE_H_

#include <compare>
#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/telemetry/stage_times.h"
#include "common/transport/transport.h"

namespace bdn {

// The replies on their way to workers: to each connection the most urgent goes first, and of equally
// urgent ones what came first. A transport sends in the order in which it is given frames, so it has
// at most `max_bytes_in_flight` of a connection at a time, or one reply that is longer; the rest
// waits here. Each connection has a budget of its own: a worker that takes nothing holds up nobody
// else.
//
// At most one reply of a key waits for a connection, so no more is held than is kept of all keys
// anyway. Nothing is remembered of a connection to which nothing is on its way; what waits for one
// that is gone ends as the transport says. Thread-safe.
class ReplyQueue {
 public:
  // `transport` and `stages` are borrowed; stages may be null. After Close the transport must be
  // closed and joined before the queue goes.
  ReplyQueue(Transport* transport, uint64_t max_bytes_in_flight, StageTimes* stages)
      : transport_(transport), max_bytes_in_flight_(max_bytes_in_flight), stages_(stages) {}
  ReplyQueue(const ReplyQueue&) = delete;
  ReplyQueue& operator=(const ReplyQueue&) = delete;

  // Does nothing when the same reply, by key and step, is on its way there. Takes the place of one
  // of another step that still waits: its worker has gone on.
  void Send(ConnectionId to, int32_t priority, Frame reply);
  // Drops what waits, and whatever comes.
  void Close();
  // Not given to the transport yet, with headers.
  uint64_t bytes_waiting() const;

 private:
  struct Order {
    int64_t urgency = 0;  // lower first
    uint64_t number = 0;
    auto operator<=>(const Order&) const = default;
  };
  struct Waiting {
    Frame reply;
    StageSpan span;
  };
  struct Peer {
    uint64_t bytes_in_flight = 0;
    absl::flat_hash_map<Key, Step> in_flight;  // the last of each key
    absl::btree_map<Order, Waiting> waiting;
    absl::flat_hash_map<Key, Order> order_of;  // of what waits
  };
  struct Sending {
    ConnectionId to;
    Frame reply;
    StageSpan span;
  };

  bool IsOnItsWay(const Peer& peer, const FrameHeader& reply) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(Peer* peer, Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What there is room for now.
  std::vector<Sending> Take(ConnectionId to, Peer* peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Perform(std::vector<Sending> sends) ABSL_LOCKS_EXCLUDED(mu_);
  void OnSent(ConnectionId to, Key key, Step step, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  Transport* const transport_;
  const uint64_t max_bytes_in_flight_;
  StageTimes* const stages_;
  mutable Mutex mu_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_waiting_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<ConnectionId, Peer> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_REPLY_QUEUE_H_
