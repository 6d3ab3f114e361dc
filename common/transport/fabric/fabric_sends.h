#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SENDS_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SENDS_H_

#include "common/transport/fabric/fabric_sessions.h"

namespace bdn {

// The frames and credits that go out over a fabric: short frames as messages, others as writes into
// the window that the peer granted, and those that do not fit there over the network. Not
// thread-safe: the poller's.
class FabricSends {
 public:
  // `sessions` is borrowed.
  explicit FabricSends(FabricSessions* sessions) : sessions_(*sessions) {}

  // Sends a frame, or lets it wait in its session. A connection without a session takes the
  // network.
  void Enqueue(FabricMailbox::Outgoing outgoing);
  // Sends a frame if it goes as a message and nothing waits before it. False: nothing has changed.
  bool SendNow(FabricMailbox::Outgoing* outgoing);
  // Sends what waits in each pending session: credits first, then frames in their order.
  void SendPending();
  // Whether the last round left something unsent that only the provider holds up.
  bool is_stuck() const { return is_stuck_; }

 private:
  using Outgoing = FabricMailbox::Outgoing;
  enum class Sent {
    kSent,
    kWaits,  // nothing was taken
    kEnded,  // the session is not up any more, and may be gone
  };

  absl::Status CheckMayWait(const FabricSession& session, uint64_t bytes) const;
  Sent TrySend(FabricSession* session, Outgoing* outgoing);
  bool IsMessage(const FabricSession& session, const Frame& frame) const;
  absl::Status SendMessage(FabricSession* session, Outgoing* outgoing);
  Sent TryWrite(FabricSession* session, Outgoing* outgoing);
  Sent OnNoRoom(FabricSession* session, Outgoing* outgoing);
  Sent OnFailure(FabricSession* session, Outgoing* outgoing, const absl::Status& failure);
  absl::Status SendPlain(FabricSession* session, const FabricPrefix& prefix, Buffer body);
  void Flush(FabricSession* session);
  // False: the session is not up any more.
  bool SendCredits(FabricSession* session);
  void CountSent(uint64_t bytes);

  FabricSessions& sessions_;
  bool is_stuck_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SENDS_H_
