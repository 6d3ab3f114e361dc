#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_PEER_TABLE_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_PEER_TABLE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/transport/transport.h"

namespace bdn {

// What waits to be sent to one peer. Counted on the poller's thread, given back on ZeroMQ's.
struct SendQueue {
  std::atomic<uint64_t> bytes{0};
  std::atomic<int64_t> moved_at_ns{0};  // when a payload last left, or the first came
};

// The peers of one listener. ZeroMQ tells of their connections by descriptor, on a channel of its
// own, and of their frames by a name that it gives to each connection: this is what puts both
// together, so that what is gone is forgotten. Knows no socket; not thread-safe.
//
// ZeroMQ's thread that accepts a connection tells of it last, so a peer's first frame can be read before its
// connection is told of. Such a peer waits for that, but not for long.
class PeerTable {
 public:
  struct Peer {
    ConnectionId id = 0;
    std::string name;  // ZeroMQ's
    int fd = -1;
    PublicKey key;
    bool is_told_of = true;  // false while ZeroMQ has told of no connection on its descriptor
    bool is_closed = false;  // it may still have frames to be read
    bool is_cut = false;     // by us: what it sent is no longer wanted
    bool was_read = false;   // a message of it, since the last weighing
    uint64_t read_in = 0;    // the turn in which a message of it was read last
    uint64_t closed_in = 0;  // and in which it was closed
    std::shared_ptr<SendQueue> queue = std::make_shared<SendQueue>();
  };

  // Returns the peer that has waited for this; null for a connection that is new.
  Peer* OnAccepted(int fd, absl::Time now);
  // False when no peer was ever found on it.
  bool OnClosed(int fd);

  // Null for a name that is new.
  Peer* Find(const std::string& name);
  Peer* Find(ConnectionId id);
  Peer* Add(ConnectionId id, std::string name, int fd, const PublicKey& key, absl::Time now);
  // Closes the peers that have waited since before `time` for their connections to be told of.
  void CloseUntoldBefore(absl::Time time);
  bool has_untold() const { return !untold_.empty(); }
  // A frame to it found nobody there.
  void Close(Peer* peer);

  // A message of the peer, frame or not, was read.
  void OnRead(Peer* peer);
  // A turn is over: whoever had a message that could be read had one read in it. Forgets those that
  // were closed before it began and had none.
  std::vector<Peer> EndTurn();
  // Forgets all that are closed. For when all that was sent to us has been read.
  std::vector<Peer> TakeClosed();
  bool has_closed() const { return !closed_.empty(); }
  // After how many messages a turn is over at the latest.
  uint64_t turn_length() const { return 2 * (peers_.size() + connections_.size()) + 1; }
  std::vector<Peer*> peers();
  size_t size() const { return peers_.size(); }

  struct Newcomer {
    int fd;
    absl::Time since;
  };
  // Connections that are new and on which no frame has come, by the order in which they came: they
  // may still be in their handshake.
  const std::map<uint64_t, Newcomer>& newcomers() const { return newcomers_; }
  void ForgetNewcomer(int fd);
  // Whoever came before `time` is through the handshake, or gone.
  void ForgetNewcomersBefore(absl::Time time);

  // Of a connection that is not closed.
  struct Weight {
    int fd;
    uint64_t unread;  // bytes of a message that has not ended
    Peer* peer;       // null where none of its messages ever ended
  };
  bool has_connections() const { return !connections_.empty(); }
  struct MostUnread {
    uint64_t bytes;
    uint64_t first_bytes;           // of a connection that has brought no message
    uint64_t first_bytes_together;  // of all of those
  };
  // Which connections are weighed: all, or those alone that are watched, which are those that have brought no
  // message, and those that had over a quarter of what they may at their last weighing.
  enum class Weighed { kAll, kWatched };
  // Those that at their last weighing had sent more than `most` since a message of theirs was read, and of
  // which none has been since. `read` says how much of a descriptor ZeroMQ has read so far; 0 where that
  // is not known. REQUIRES: a turn has begun and ended since the last weighing, of whichever it was.
  std::vector<Weight> Weigh(Weighed weighed, const std::function<uint64_t(int fd)>& read,
                            const MostUnread& most);
  // Whether some were watched at the last weighing, or have come since.
  bool has_watched() const { return has_watched_; }

 private:
  struct Connection {
    Peer* peer = nullptr;
    // Bytes that had come at the last weighing, and at the last one before which a message was read.
    uint64_t at_weighing = 0;
    uint64_t at_read = 0;
    bool is_heavy = false;  // watched though it has brought messages
  };
  struct Untold {
    Peer* peer;
    absl::Time since;
  };
  std::vector<Peer> Take(const std::vector<ConnectionId>& ids);

  absl::flat_hash_map<ConnectionId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::string, Peer*> by_name_;
  absl::flat_hash_map<int, Connection> connections_;  // by descriptor; not those that are closed
  absl::flat_hash_map<int, Untold> untold_;           // by descriptor
  absl::flat_hash_set<int> closed_before_a_frame_;    // descriptors: a frame may still be read
  std::map<uint64_t, Newcomer> newcomers_;
  absl::flat_hash_map<int, uint64_t> newcomer_of_fd_;
  uint64_t num_accepted_ = 0;
  uint64_t turn_ = 1;
  std::vector<ConnectionId> closed_;
  bool has_watched_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_PEER_TABLE_H_
