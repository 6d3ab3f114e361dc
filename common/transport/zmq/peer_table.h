#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_PEER_TABLE_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_PEER_TABLE_H_

#include <atomic>
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
// What is told of a descriptor must be told before a peer that is found on it is added.
class PeerTable {
 public:
  struct Peer {
    ConnectionId id = 0;
    std::string name;  // ZeroMQ's
    int fd = -1;
    PublicKey key;
    bool is_closed = false;  // it may still have frames to be read
    bool is_cut = false;     // by us: what it sent is no longer wanted
    std::shared_ptr<SendQueue> queue = std::make_shared<SendQueue>();
  };

  void OnAccepted(int fd, absl::Time now);
  // False when no peer was ever found on it.
  bool OnClosed(int fd);

  // Null for a name that is new.
  Peer* Find(const std::string& name);
  Peer* Find(ConnectionId id);
  Peer* Add(ConnectionId id, std::string name, int fd, const PublicKey& key);
  // A frame to it found nobody there.
  void Close(Peer* peer);

  // Forgets those that are closed. For when all that was sent to us has been read.
  std::vector<Peer> TakeClosed();
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

 private:
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::string, Peer*> by_name_;
  absl::flat_hash_map<int, Peer*> by_fd_;  // those that are not closed
  absl::flat_hash_set<int> open_fds_;
  std::map<uint64_t, Newcomer> newcomers_;
  absl::flat_hash_map<int, uint64_t> newcomer_of_fd_;
  uint64_t num_accepted_ = 0;
  std::vector<ConnectionId> closed_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_PEER_TABLE_H_
