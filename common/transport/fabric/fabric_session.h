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

// A connection's way over the fabric, and where it is in its life. The poller's.
//
//   state     | leads to | when
//   kGreeting | kUp      | the other end has welcomed us (a connector's first state)
//             | kGreeting| it has refused us; nothing goes before it is asked again
//   kUp       | kGreeting| something on the way failed, or the other end forgot us: all is met anew
//   (a listener's begins as kUp, with the hello, and goes with its connection, the next hello or a
//   failure)
struct FabricSession {
  enum class State { kGreeting, kUp };
  static constexpr absl::Duration kMostNoRoom = absl::Milliseconds(200);

  ConnectionId connection = 0;
  bool is_connector = false;
  State state = State::kGreeting;
  uint64_t id = 0;   // the connector's number for this meeting
  uint64_t tag = 0;  // this end's; 0 while nothing is granted
  PublicKey key;     // of a listener's peer
  // What this end grants, and has said of itself.
  FabricHandshake own;
  std::shared_ptr<FabricWindow> window;
  // kUp: what the other end has.
  FabricHandshake peer;
  FabricEndpoint::Peer address = 0;
  std::optional<FabricPeerWindow> peer_window;
  bool has_asked = false;  // for credits
  // Since when the first of what waits has found no room: after a while it goes over the network, as what
  // the peer holds may wait for that very frame.
  absl::Time no_room_since = absl::InfiniteFuture();
  absl::Time RoomDeadline() const { return no_room_since + kMostNoRoom; }
  bool has_heard = false;  // a frame has come since it was up
  int failures = 0;        // meetings that ended without one

  std::deque<FabricMailbox::Outgoing> waiting;
  uint64_t waiting_bytes = 0;
  std::vector<uint32_t> credits;  // that could not be sent yet
  absl::Status refusal;           // the last

  // A connector's.
  absl::Time next_hello = absl::InfinitePast();
  absl::Time heard_at = absl::InfinitePast();  // the last welcome
};

// The numbers of sessions, by which what arrives is told apart. A number that becomes free is used again
// late, and under another generation. Not thread-safe.
class FabricNumbers {
 public:
  // An immediate without a block; nothing: there are too many.
  std::optional<uint32_t> Take(FabricSession* session);
  void Give(uint32_t immediate);
  // Null: nobody's now.
  FabricSession* Find(uint32_t number) const;

 private:
  struct Entry {
    FabricSession* session = nullptr;
    uint32_t generation = 0;
  };
  std::vector<Entry> entries_;
  std::deque<uint32_t> free_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SESSION_H_
