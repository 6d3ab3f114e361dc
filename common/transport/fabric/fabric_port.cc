#include "common/transport/fabric/fabric_port.h"

#include "common/base/status.h"

namespace bdn {

absl::StatusOr<std::unique_ptr<FabricPort>> FabricPort::Open(const FabricEndpoint::Options& options,
                                                             TransportCounter* copied) {
  std::unique_ptr<FabricPort> port(new FabricPort());
  BDN_ASSIGN_OR_RETURN(port->endpoint, FabricEndpoint::Open(options));
  FabricEndpoint* const endpoint = port->endpoint.get();
  constexpr size_t kMessage = kFabricHeadBytes + kFabricMessageBytes;
  if (endpoint->max_message_bytes() < kMessage) {
    return FailedPrecondition("fabric provider %s: its messages have %d bytes, %d are needed",
                              endpoint->provider(), endpoint->max_message_bytes(), kMessage);
  }
  if (endpoint->needs_registered_sends()) {
    port->arena = std::make_shared<FabricArena>(endpoint, port->retired);
  }
  BDN_ASSIGN_OR_RETURN(port->sender,
                       FabricSender::Make(endpoint, port->arena, port->retired, copied));
  BDN_ASSIGN_OR_RETURN(port->receiver,
                       FabricReceiver::Make(endpoint, kMessage, port->retired, copied));
  return port;
}

void FabricPort::Leave(const std::string& address, FabricWindow* window) {
  if (!address.empty()) endpoint->RemovePeer(address);
  window->Revoke();
}

void FabricPort::Close() {
  if (endpoint == nullptr) return;
  // Registrations end after the endpoint is closed, when the provider reads and writes nothing any
  // more. The endpoint is destroyed last, because they belong to its domain.
  if (arena != nullptr) arena->Stop();
  endpoint->Close();
  if (arena != nullptr) arena->Close();
  sender.reset();
  receiver.reset();
  endpoint.reset();
}

}  // namespace bdn
