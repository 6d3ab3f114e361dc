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

// The payloads that wait to be sent to one peer, counted. The poller's thread adds to them,
// ZeroMQ's threads take from them. Thread-safe; the numbers publish nothing else.
struct SendQueue {
  std::atomic<uint64_t> bytes{0};
  std::atomic<int64_t> moved_at_ns{0};  // when a payload last left, or came into the empty queue
};

// The table of one listener's peers. ZeroMQ tells of their connections by descriptor, on a channel
// of its own (the monitor), and of their frames by a name that it gives to each connection. The
// table joins both, so that a connection that is gone is forgotten. It knows no socket. Not
// thread-safe.
//
// ZeroMQ's thread that accepts a connection tells of it last, so the first frame of a peer can be
// read before its connection is told of. Such a peer waits for that, but not for long.
class PeerTable {
 public:
  // A peer, from its first message until it is forgotten.
  struct Peer {
    ConnectionId id = 0;
    std::string name;  // ZeroMQ's name for the connection
    int fd = -1;
    PublicKey key;
    bool is_told_of = true;  // false while ZeroMQ has told of no connection on its descriptor
    bool is_closed = false;  // some of its frames may still have to be read
    bool is_cut = false;     // by us: the frames that it sent are no longer wanted
    bool was_read = false;   // whether a message of it was read since its last weighing
    uint64_t read_in = 0;    // the turn in which its last message was read
    uint64_t closed_in = 0;  // the turn in which it was closed
    std::shared_ptr<SendQueue> queue = std::make_shared<SendQueue>();
  };

  // Adds a new connection. Returns the peer that has waited for this; null for a connection without
  // one, which is a newcomer until its first message is read.
  Peer* OnAccepted(int fd, absl::Time now);
  // Closes a connection. Returns false when no peer was ever found on it.
  bool OnClosed(int fd);

  // Returns a peer; null for a name or number that the table does not have.
  Peer* Find(const std::string& name);
  Peer* Find(ConnectionId id);
  // Adds the peer whose first message was read from `fd`. If the connection was told of and has
  // closed, the peer is closed at once; if it was not told of, the peer waits for that.
  Peer* Add(ConnectionId id, std::string name, int fd, const PublicKey& key, absl::Time now);
  // Closes the peers that have waited since before `time` for their connections to be told of.
  void CloseUntoldBefore(absl::Time time);
  bool has_untold() const { return !untold_.empty(); }
  // Closes a peer, as when a frame to it found no connection.
  void Close(Peer* peer);

  // Notes that a message of the peer, a frame or not, was read.
  void OnRead(Peer* peer);
  // Ends a turn, in which each peer with a readable message had one read. Returns, and forgets, the
  // peers that were closed before the turn began and had none read in it.
  std::vector<Peer> EndTurn();
  // Returns, and forgets, all closed peers. To be called when everything that was sent to us has
  // been read.
  std::vector<Peer> TakeClosed();
  bool has_closed() const { return !closed_.empty(); }
  // Returns the number of messages after which a turn is over at the latest.
  uint64_t turn_length() const { return 2 * (peers_.size() + connections_.size()) + 1; }
  std::vector<Peer*> peers();
  size_t size() const { return peers_.size(); }

  // A connection on which no message has come.
  struct Newcomer {
    int fd;
    absl::Time since;
  };
  // Returns the newcomers, in the order in which they came: they may still be in their handshake.
  const std::map<uint64_t, Newcomer>& newcomers() const { return newcomers_; }
  void ForgetNewcomer(int fd);
  // Forgets the newcomers that came before `time`: they are through the handshake, or gone.
  void ForgetNewcomersBefore(absl::Time time);

  // The weight of an open connection.
  struct Weight {
    int fd;
    uint64_t unread;  // bytes of a message that has not ended
    Peer* peer;       // null where none of its messages ever ended
  };
  bool has_connections() const { return !connections_.empty(); }
  // The limits of unread bytes.
  struct MostUnread {
    uint64_t bytes;
    uint64_t first_bytes;           // of a connection that has brought no message
    uint64_t first_bytes_together;  // of all such connections together
  };
  // The connections to be weighed: all, or the watched ones alone. A connection is watched if it
  // has brought no message, or had at its last weighing more than a quarter of the bytes that it
  // may have.
  enum class Weighed { kAll, kWatched };
  // Weighs connections, and returns those that are too heavy: those that at their last weighing had
  // sent more than `most` allows since a message of theirs was read, and of which none was read
  // since; and of the others that have brought no message the heaviest, while they have more than
  // they may have together. `read` returns the bytes of a descriptor that ZeroMQ has read so far; 0
  // where that is not known. REQUIRES: a turn has begun and ended since the last weighing, of
  // either kind.
  std::vector<Weight> Weigh(Weighed weighed, const std::function<uint64_t(int fd)>& read,
                            const MostUnread& most);
  // Returns whether some connections were watched at the last weighing, or have come since.
  bool has_watched() const { return has_watched_; }

 private:
  struct Connection {
    Peer* peer = nullptr;
    // Bytes that ZeroMQ had read at the last weighing, and at the last one before which a message
    // was read.
    uint64_t at_weighing = 0;
    uint64_t at_read = 0;
    bool is_heavy = false;  // watched, though it has brought messages
  };
  // A peer that waits for its connection to be told of.
  struct Untold {
    Peer* peer;
    absl::Time since;
  };
  std::vector<Peer> Take(const std::vector<ConnectionId>& ids);

  absl::flat_hash_map<ConnectionId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::string, Peer*> by_name_;
  absl::flat_hash_map<int, Connection> connections_;  // the open ones, by descriptor
  absl::flat_hash_map<int, Untold> untold_;           // by descriptor
  // Descriptors of connections that closed before a frame of theirs was read, which may still be.
  absl::flat_hash_set<int> closed_before_a_frame_;
  std::map<uint64_t, Newcomer> newcomers_;
  absl::flat_hash_map<int, uint64_t> newcomer_of_fd_;
  uint64_t num_accepted_ = 0;
  uint64_t turn_ = 1;
  std::vector<ConnectionId> closed_;
  bool has_watched_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_PEER_TABLE_H_
