#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SESSION_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SESSION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_mailbox.h"
#include "common/transport/fabric/fabric_window.h"
#include "common/transport/fabric/fabric_wire.h"

namespace bdn {

// The state of one connection's way over the fabric. Not thread-safe: the poller's.
//
//   state     | leads to | when
//   kGreeting | kUp      | the other end sent a welcome (kGreeting is a connector's first state)
//             | kGreeting| the other end sent a refusal; nothing is sent before the next hello
//   kUp       | kGreeting| an operation failed, or the other end forgot the session: both meet anew
//   (A listener's session begins as kUp, with the hello. It ends with its connection, with another
//   hello, or with a failure.)
struct FabricSession {
  enum class State { kGreeting, kUp };
  static constexpr absl::Duration kMostNoRoom = absl::Milliseconds(200);

  ConnectionId connection = 0;
  bool is_connector = false;
  State state = State::kGreeting;
  uint64_t id = 0;   // the connector's number for this meeting
  uint64_t tag = 0;  // this end's number for it; 0 while no window is granted
  PublicKey key;     // the CURVE key of a listener's peer
  // The handshake that this end has sent, and the window that it grants.
  FabricHandshake own;
  std::shared_ptr<FabricWindow> window;
  // While kUp: the other end's handshake, its provider address and the window that it granted.
  FabricHandshake peer;
  FabricEndpoint::Peer address = 0;
  std::optional<FabricPeerWindow> peer_window;
  bool has_asked = false;  // the peer was told that credits are wanted
  // The time since when the first waiting frame has found no room in the peer's window. At
  // RoomDeadline it goes over the network instead, because the peer may be holding its blocks until
  // it gets this frame.
  absl::Time no_room_since = absl::InfiniteFuture();
  absl::Time RoomDeadline() const { return no_room_since + kMostNoRoom; }
  bool has_heard = false;  // a message or frame has arrived since the session was up
  int failures = 0;        // meetings in a row that ended without one

  std::deque<FabricMailbox::Outgoing> waiting;
  uint64_t waiting_bytes = 0;
  std::vector<uint32_t> credits;  // not yet sent
  absl::Status refusal;           // the last one, for sends until the next meeting

  // Only a connector uses these two.
  absl::Time next_hello = absl::InfinitePast();
  absl::Time heard_at = absl::InfinitePast();  // when the last welcome came
};

// The numbers of sessions, which name the session of each arriving message and write. A free number
// is used again late, and with another generation, so that late arrivals of the old session are
// recognised. Not thread-safe.
class FabricNumbers {
 public:
  // Returns immediate data for the session, with block 0. Nothing: there are too many sessions.
  std::optional<uint32_t> Take(FabricSession* session);
  // Frees a number that Take has returned.
  void Give(uint32_t immediate);
  // Returns null where the number belongs to no session now.
  FabricSession* Find(uint32_t number) const;

 private:
  // A number's present owner, and its generation.
  struct Entry {
    FabricSession* session = nullptr;
    uint32_t generation = 0;
  };
  std::vector<Entry> entries_;
  std::deque<uint32_t> free_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SESSION_H_
