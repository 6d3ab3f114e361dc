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

// An endpoint together with its sender, its receiver and their registered memory. Not thread-safe:
// the poller's.
class FabricPort {
 public:
  // Opens an endpoint. Returns the errors of FabricEndpoint::Open, and FailedPrecondition where its
  // messages are too short. `copied` is borrowed.
  static absl::StatusOr<std::unique_ptr<FabricPort>> Open(const FabricEndpoint::Options& options,
                                                          TransportCounter* copied);
  ~FabricPort() { Close(); }
  FabricPort(const FabricPort&) = delete;
  FabricPort& operator=(const FabricPort&) = delete;

  // Revokes the window that was granted to a peer, and removes the peer's address, which is empty
  // where the peer had not been met yet.
  void Leave(const std::string& address, FabricWindow* window);
  // Closes everything. Afterwards no peer reaches memory of this process.
  void Close();

  std::shared_ptr<RetiredAddresses> retired = std::make_shared<RetiredAddresses>();
  std::unique_ptr<FabricEndpoint> endpoint;
  std::shared_ptr<FabricArena> arena;  // null where memory to send from need not be registered
  std::unique_ptr<FabricSender> sender;
  std::unique_ptr<FabricReceiver> receiver;

 private:
  FabricPort() = default;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_PORT_H_
