#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SESSIONS_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SESSIONS_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/base/log_limit.h"
#include "common/transport/fabric/fabric_mailbox.h"
#include "common/transport/fabric/fabric_port.h"
#include "common/transport/fabric/fabric_session.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/transport_counters.h"

namespace bdn {

// The counters of one fabric transport. Thread-safe.
struct FabricCounters {
  TransportCounters transport;
  TransportCounter bytes_copied;
  TransportCounter sessions;
  TransportCounter meetings;
};

// The transport as its poller sees it: objects that the poller borrows, and calls by which it tells
// the transport what has happened. The poller makes these calls on its own thread.
struct FabricOwner {
  const FabricOptions* options;
  const Clock* clock;
  std::shared_ptr<FabricMailbox>
      mailbox;  // shared, because a lent payload may outlive the transport
  FabricCounters* counters;
  std::function<void(ConnectionId from, Frame frame)> deliver;
  // Sends a handshake, or a frame that does not go over the fabric, over the network.
  std::function<void(ConnectionId to, const FabricHandshake& handshake)> say;
  std::function<void(FabricMailbox::Outgoing outgoing)> send_by_network;
  // Sends later frames to the connection over the fabric, or over the network again.
  std::function<void(ConnectionId connection, bool by_fabric)> set_way;
  std::function<void(ConnectionId connection)> cut;
  // Returns the key of the peer of a listener's connection: an empty one where the listener is
  // open, nothing where the connection is gone.
  std::function<std::optional<PublicKey>(ConnectionId connection)> key_of;
  // Says that a listener's connection has ended, and that all its frames were delivered.
  std::function<void(ConnectionId connection)> gone;
};

// All sessions of one fabric transport, and the ways in which a session gets its window, loses it
// and ends. They are found by connection, by tag (in events of sends) and by number (in what
// arrives). Not thread-safe: the poller's.
class FabricSessions {
 public:
  using Map = absl::flat_hash_map<ConnectionId, std::unique_ptr<FabricSession>>;
  using Outgoing = FabricMailbox::Outgoing;

  static constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);

  FabricSessions(FabricOwner owner, std::unique_ptr<FabricPort> port);

  const FabricOwner& owner() const { return owner_; }
  const FabricOptions& options() const { return *owner_.options; }
  FabricPort* port() const { return port_.get(); }
  LimitedLog* log() { return &log_; }

  const Map& all() const { return sessions_; }
  FabricSession* Find(ConnectionId connection) const;
  FabricSession* FindByTag(uint64_t tag) const;
  FabricSession* FindByNumber(uint32_t number) const { return numbers_.Find(number); }
  // REQUIRES: the connection has no session.
  FabricSession* Add(ConnectionId connection);

  // Gives the session a window, and fills in what this end says of itself but for the kind and the
  // number of the meeting. After an error nothing is granted.
  absl::Status Grant(FabricSession* session);
  // Takes the window back. Sends on their way end in `why`; the session begins anew.
  void Revoke(FabricSession* session, const absl::Status& why);
  // Ends a meeting that failed. A connector meets its peer again later, or goes over to the network
  // after several failures where it may; a listener's session is removed.
  void EndMeeting(FabricSession* session, const absl::Status& why);
  // Removes the session, and sends its waiting frames and all later ones over the network.
  void ToNetwork(FabricSession* session);
  // Removes the connection's session, if it has one: its frames end in `why`.
  void Remove(ConnectionId connection, const absl::Status& why);
  void RemoveAll(const absl::Status& why);
  // Ends the connection of a peer that broke the rules; a connector meets its peer again instead.
  void Cut(FabricSession* session, const char* why);
  bool IsCut(ConnectionId connection) const { return cut_.contains(connection); }
  // Returns whether the connection was cut, and forgets it.
  bool ForgetCut(ConnectionId connection) { return cut_.erase(connection) > 0; }

  // Ends one send, or all that wait, in an error.
  void Fail(Transport::SendDone done, absl::Status status);
  void FailWaiting(FabricSession* session, const absl::Status& why);

  // Sessions that have something to send, or may have.
  void AddPending(ConnectionId connection) { pending_.insert(connection); }
  void DropPending(ConnectionId connection) { pending_.erase(connection); }
  std::vector<ConnectionId> Pending() const { return {pending_.begin(), pending_.end()}; }

  // The time at which the first session is due.
  void DueAt(absl::Time time) { due_ = std::min(due_, time); }
  absl::Time due() const { return due_; }
  void ForgetDue() { due_ = absl::InfiniteFuture(); }

 private:
  const FabricOwner owner_;
  const std::unique_ptr<FabricPort> port_;
  LimitedLog log_;
  FabricNumbers numbers_;
  Map sessions_;
  absl::flat_hash_map<uint64_t, FabricSession*> by_tag_;
  absl::flat_hash_set<ConnectionId> pending_;
  absl::flat_hash_set<ConnectionId> cut_;  // connections that the network still has
  uint64_t last_tag_ = 0;
  absl::Time due_ = absl::InfiniteFuture();
};

// Bytes of a frame as counters count them.
inline uint64_t FabricBytesOf(const Frame& frame) { return kHeaderBytes + frame.payload.size(); }

// A random number that is not 0, for tokens and meetings. Nobody can guess it.
uint64_t RandomFabricNumber();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SESSIONS_H_
