#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEETINGS_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEETINGS_H_

#include <string>

#include "absl/container/flat_hash_set.h"
#include "common/transport/fabric/fabric_sessions.h"

namespace bdn {

// The handshakes of a fabric: they bring sessions up, keep a connector's alive, and refuse peers
// that are not admitted. Not thread-safe: the poller's.
class FabricMeetings {
 public:
  // `sessions` is borrowed.
  explicit FabricMeetings(FabricSessions* sessions) : sessions_(*sessions) {}

  // Begins to meet the listener of a connection that Connect made.
  void AddConnector(ConnectionId connection);
  // Takes a handshake that came over the network, or the error of one that could not be read.
  void OnHandshake(ConnectionId from, const absl::StatusOr<FabricHandshake>& handshake);
  // Ends a listener's sessions with peers whose keys are no longer admitted.
  void Admit(const Admission& admission);
  // Says the hellos that are due, and ends meetings with peers that were silent for too long. May
  // be called at any time.
  void OnTime(absl::Time now);

 private:
  void Greet(FabricSession* session);
  absl::Status Accept(FabricSession* session, const FabricHandshake& peer);
  void OnHello(ConnectionId from, const FabricHandshake& hello);
  void OnWelcome(FabricSession* session, const FabricHandshake& welcome);
  void OnRefusal(FabricSession* session, const std::string& why);
  bool Admits(const PublicKey& key) const { return key.empty() || admitted_.contains(key); }
  void OnDue(FabricSession* session, absl::Time now);

  FabricSessions& sessions_;
  absl::flat_hash_set<PublicKey> admitted_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEETINGS_H_
