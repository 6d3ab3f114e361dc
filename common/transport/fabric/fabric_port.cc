#include "common/transport/fabric/fabric_port.h"

#include <utility>
#include <vector>

#include "common/base/status.h"

namespace bdn {
namespace {

// Longer than what a peer has begun can take.
constexpr absl::Duration kKept = absl::Seconds(1);

}  // namespace

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

void FabricPort::Drop(const Left& left) {
  const bool may_remove = !endpoint->is_of_host() && !left.address.empty();
  if (may_remove) endpoint->RemovePeer(left.address);
  left.window->Revoke();
}

void FabricPort::Leave(const std::string& address, std::shared_ptr<FabricWindow> window,
                       absl::Time now) {
  Left left = {now, address, std::move(window)};
  if (!endpoint->is_of_host()) return Drop(left);
  left_.push_back(std::move(left));
}

absl::Time FabricPort::Forget(absl::Time now) {
  for (; !left_.empty(); left_.pop_front()) {
    if (left_.front().at + kKept > now) return left_.front().at + kKept;
    Drop(left_.front());
  }
  return absl::InfiniteFuture();
}

bool FabricPort::Drain() {
  std::vector<FabricEvent> events;
  if (!endpoint->Poll(&events)) return false;
  for (const FabricEvent& event : events) {
    if (event.operation == nullptr) continue;
    if (event.operation->is_receive) {
      receiver->Return(event);
    } else {
      sender->OnEvent(event);
    }
  }
  receiver->PostFree().IgnoreError();  // the next Drain tries again
  return true;
}

void FabricPort::Close() {
  if (endpoint == nullptr) return;
  for (const Left& left : left_) left.window->Revoke();
  left_.clear();
  if (arena != nullptr) arena->Stop();
  endpoint->Close();
  if (arena != nullptr) arena->Close();
  sender.reset();
  receiver.reset();
  endpoint.reset();
}

}  // namespace bdn
