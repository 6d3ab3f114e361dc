#include "common/transport/fabric/fabric_poller.h"

#include <utility>

#include "common/base/status.h"

namespace bdn {

absl::StatusOr<std::unique_ptr<FabricPoller>> FabricPoller::Make(Owner owner) {
  BDN_ASSIGN_OR_RETURN(std::unique_ptr<FabricPort> port,
                       FabricPort::Open(owner.options->endpoint, &owner.counters->bytes_copied));
  return std::unique_ptr<FabricPoller>(new FabricPoller(std::move(owner), std::move(port)));
}

std::shared_ptr<MemoryDomain> FabricPoller::memory() const {
  if (sessions_.port()->arena == nullptr) return HostMemory();
  return sessions_.port()->arena;
}

void FabricPoller::Apply(FabricMailbox::Requests* requests) {
  // Connectors come before handshakes and frames, which are of no use to a connection without a
  // session. Admissions come before handshakes: a peer that was admitted and says hello at once
  // must be let in. Ends come last, because frames that were sent before them still go.
  for (const ConnectionId connection : requests->connectors) meetings_.AddConnector(connection);
  if (requests->admission.has_value()) meetings_.Admit(*requests->admission);
  for (const auto& [from, handshake] : requests->handshakes) {
    meetings_.OnHandshake(from, handshake);
  }
  for (FabricMailbox::Outgoing& outgoing : requests->frames) sends_.Enqueue(std::move(outgoing));
  for (const uint32_t number : requests->released) TakeReleased(number);
  for (const ConnectionId connection : requests->ended) EndConnector(connection);
  for (const ConnectionId connection : requests->gone) events_.OnGone(connection);
}

void FabricPoller::TakeReleased(uint32_t number) {
  FabricSession* const session = sessions_.FindByNumber(number);
  if (session == nullptr) return;
  for (const uint32_t block : session->window->TakeReleased()) session->credits.push_back(block);
  sessions_.AddPending(session->connection);
}

void FabricPoller::EndConnector(ConnectionId connection) {
  const FabricSession* const session = sessions_.Find(connection);
  // Disconnect does not end a listener's connections.
  if (session == nullptr || !session->is_connector) return;
  sessions_.Remove(connection, Unavailable("send: connection %d is gone", connection));
}

bool FabricPoller::SendNow(FabricMailbox::Outgoing* outgoing) {
  return !is_closed_ && sends_.SendNow(outgoing);
}

bool FabricPoller::Progress() {
  const bool was_busy = events_.HandleAll();
  sends_.SendPending();
  const absl::Status posted = sessions_.port()->receiver->PostFree();
  if (!posted.ok() && !absl::IsUnavailable(posted)) {
    sessions_.log()->Warning("%s", posted.message());
  }
  return was_busy;
}

void FabricPoller::Close() {
  if (std::exchange(is_closed_, true)) return;
  sessions_.RemoveAll(Unavailable("send: the transport was closed"));
  sessions_.port()->Close();
}

}  // namespace bdn
