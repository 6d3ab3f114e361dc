#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_PORT_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_PORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/fabric/fabric_arena.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/fabric_memory.h"
#include "common/transport/fabric/fabric_receiver.h"
#include "common/transport/fabric/fabric_sender.h"
#include "common/transport/fabric/fabric_transport.h"
#include "common/transport/fabric/fabric_window.h"
#include "common/transport/transport_counters.h"

namespace bdn {

// An endpoint and all that is of use with it alone: what goes out, and what comes in. Not thread-safe: the
// poller's.
class FabricPort {
 public:
  // As FabricEndpoint::Open; FailedPrecondition: its messages are too short. `copied` is borrowed.
  static absl::StatusOr<std::unique_ptr<FabricPort>> Open(const FabricEndpoint::Options& options,
                                                          TransportCounter* copied);
  ~FabricPort() { Close(); }
  FabricPort(const FabricPort&) = delete;
  FabricPort& operator=(const FabricPort&) = delete;

  // Revokes what was granted to a peer, and removes its address; it is empty where the peer had not been met yet.
  void Leave(const std::string& address, FabricWindow* window);
  // No memory of ours is reached by anybody afterwards.
  void Close();

  std::shared_ptr<RetiredAddresses> retired = std::make_shared<RetiredAddresses>();
  std::unique_ptr<FabricEndpoint> endpoint;
  std::shared_ptr<FabricArena> arena;  // null where nothing need be registered
  std::unique_ptr<FabricSender> sender;
  std::unique_ptr<FabricReceiver> receiver;

 private:
  FabricPort() = default;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_PORT_H_
