#ifndef BANDONEON_SERVER_REPLY_QUEUE_H_
#define BANDONEON_SERVER_REPLY_QUEUE_H_

#include <cstdint>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/telemetry/stage_times.h"
#include "common/transport/transport.h"
#include "link/urgency.h"

namespace bdn {

// A queue of the replies on their way to workers. To each connection the most urgent goes first;
// among equally urgent replies, the one that was queued first. A transport sends frames in the
// order in which it gets them, so it gets at most `max_bytes_in_flight` of a connection at a time,
// or one reply that is longer; the rest waits here. Each connection has a budget of its own, so a
// worker that reads nothing delays no other worker.
//
// At most one reply of a key waits for a connection, so the queue holds no more than the server
// keeps of all keys anyway. A connection to which nothing is on its way takes no memory. Replies
// that wait for a connection that is gone end with the transport's error. Thread-safe.
class ReplyQueue {
 public:
  // `transport` and `stages` are borrowed; stages may be null. After Close, the transport must be
  // closed and joined before the queue is destroyed, because its callbacks use the queue.
  ReplyQueue(Transport* transport, uint64_t max_bytes_in_flight, StageTimes* stages)
      : transport_(transport), max_bytes_in_flight_(max_bytes_in_flight), stages_(stages) {}
  ReplyQueue(const ReplyQueue&) = delete;
  ReplyQueue& operator=(const ReplyQueue&) = delete;

  // Queues a reply to a node. Does nothing if the same reply, by key and step, is already on its
  // way there. Replaces a reply of the key of another step that still waits: its worker has gone
  // on.
  void Send(ConnectionId to, NodeId node, int32_t priority, Frame reply);
  // Drops the replies that wait, and those that are queued later.
  void Close();
  // Returns the bytes, headers included, that the transport has not been given yet.
  uint64_t bytes_waiting() const;

 private:
  // Orders a map whose first entry is the most urgent.
  struct MoreUrgent {
    bool operator()(const ArrivalUrgency& a, const ArrivalUrgency& b) const {
      return IsLessUrgent(b, a);
    }
  };
  struct Waiting {
    Frame reply;
    NodeId node;
    StageSpan span;
  };
  struct Peer {
    uint64_t bytes_in_flight = 0;
    absl::flat_hash_map<Key, Step> in_flight;  // the last step of each key
    absl::btree_map<ArrivalUrgency, Waiting, MoreUrgent> waiting;
    absl::flat_hash_map<Key, ArrivalUrgency> order_of;  // the entry of each key in `waiting`
  };
  struct Sending {
    ConnectionId to;
    Frame reply;
    NodeId node;
    StageSpan span;
  };

  bool IsOnItsWay(const Peer& peer, const FrameHeader& reply) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(Peer* peer, Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes from the waiting replies those for which there is room now, and returns them.
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
