#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_EVENTS_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_EVENTS_H_

#include <vector>

#include "common/transport/fabric/fabric_sessions.h"

namespace bdn {

// The events of a fabric's endpoint: frames and credits that have arrived, and sends that have come
// to an end. Not thread-safe: the poller's.
class FabricEvents {
 public:
  // `sessions` is borrowed.
  explicit FabricEvents(FabricSessions* sessions) : sessions_(*sessions) {}

  // Handles the events that there are. False: there were none.
  bool HandleAll();
  // Ends the session of a listener's connection that the network has lost, once what its peer sent
  // before that was delivered.
  void OnGone(ConnectionId connection);

 private:
  void OnEvent(const FabricEvent& event);
  void OnSent(const FabricEvent& event);
  void OnMessage(const FabricEvent& event);
  // False: the message is no frame.
  bool OnFrame(FabricSession* session, const FabricPrefix& prefix, const FabricEvent& event);
  // False: the peer breaks the rules.
  bool OnCredits(FabricSession* session, ByteSpan blocks);
  void OnWritten(uint32_t immediate);
  void Deliver(FabricSession* session, Frame frame);
  void CountMalformed() { sessions_.owner().counters->transport.frames_malformed.Add(); }

  FabricSessions& sessions_;
  std::vector<FabricEvent> events_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_EVENTS_H_
