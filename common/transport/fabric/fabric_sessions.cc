#include "common/transport/fabric/fabric_sessions.h"

#include <string>

#include "common/base/endian.h"
#include "common/base/secret.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr int kMostFailures = 3;  // of meetings in a row, where the network can be taken instead
constexpr uint32_t kBlockBytes = 32768;

}  // namespace

uint64_t RandomFabricNumber() {
  const std::string random = RandomSecret();
  return std::max<uint64_t>(1, LoadLittle<uint64_t>(std::as_bytes(std::span(random))));
}

FabricSessions::FabricSessions(FabricOwner owner, std::unique_ptr<FabricPort> port)
    : owner_(std::move(owner)), port_(std::move(port)), log_(owner_.clock) {}

FabricSession* FabricSessions::Find(ConnectionId connection) const {
  const auto found = sessions_.find(connection);
  return found == sessions_.end() ? nullptr : found->second.get();
}

FabricSession* FabricSessions::FindByTag(uint64_t tag) const {
  const auto found = by_tag_.find(tag);
  return found == by_tag_.end() ? nullptr : found->second;
}

FabricSession* FabricSessions::Add(ConnectionId connection) {
  auto session = std::make_unique<FabricSession>();
  session->connection = connection;
  return (sessions_[connection] = std::move(session)).get();
}

absl::Status FabricSessions::Grant(FabricSession* session) {
  const std::optional<uint32_t> immediate = numbers_.Take(session);
  if (!immediate.has_value()) {
    return ResourceExhausted("a fabric of %d windows has no more", kMostFabricWindows);
  }
  const uint64_t token = RandomFabricNumber();
  const uint32_t number = FabricNumber(*immediate);
  absl::StatusOr<std::shared_ptr<FabricWindow>> window = FabricWindow::Make(
      *port_->endpoint,
      {.block_bytes = kBlockBytes,
       .num_blocks = static_cast<uint32_t>(options().window_bytes / kBlockBytes),
       .immediate = *immediate,
       .token = token,
       .max_payload_bytes = options().max_payload_bytes,
       .copied = &owner_.counters->bytes_copied,
       .released =
           [mailbox = owner_.mailbox, number] {
             mailbox->Ask([number](auto* requests) { requests->released.push_back(number); });
           }},
      port_->retired);
  if (!window.ok()) {
    numbers_.Give(*immediate);
    return window.status();
  }
  session->window = *std::move(window);
  session->tag = ++last_tag_;
  by_tag_[session->tag] = session;
  owner_.counters->sessions.Set(by_tag_.size());
  owner_.counters->meetings.Add();
  session->own = {.token = token,
                  .number = number,
                  .message_bytes = kFabricHeadBytes + kFabricMessageBytes,
                  .grant = session->window->grant(),
                  .provider = port_->endpoint->provider(),
                  .address = port_->endpoint->address()};
  return absl::OkStatus();
}

void FabricSessions::Revoke(FabricSession* session, const absl::Status& why) {
  if (session->tag == 0) return;
  numbers_.Give(session->own.grant.immediate);
  std::vector<Transport::SendDone> done;
  const bool was_up = session->state == FabricSession::State::kUp;
  // Sends on their way are abandoned before the peer's address is removed: the provider may still
  // look at the address for each of them, so each keeps a share of it until its event comes.
  if (was_up) done = port_->sender->Abandon(session->tag, session->peer.address);
  port_->Leave(was_up ? session->peer.address : "", session->window.get());
  session->window.reset();
  by_tag_.erase(session->tag);
  owner_.counters->sessions.Set(by_tag_.size());
  session->tag = 0;
  session->id = 0;  // so that a late welcome is not taken for one of the next meeting
  session->state = FabricSession::State::kGreeting;
  session->peer_window.reset();
  session->credits.clear();
  session->no_room_since = absl::InfiniteFuture();
  // Last: a callback may send again, and must find the session as it will be.
  for (Transport::SendDone& each : done) Fail(std::move(each), why);
}

void FabricSessions::EndMeeting(FabricSession* session, const absl::Status& why) {
  log_.Warning("the way over the fabric has ended: %s", why.message());
  if (!session->is_connector) return Remove(session->connection, Unavailable("%s", why.message()));
  const bool was_of_use = session->has_heard;
  Revoke(session, Unavailable("%s", why.message()));
  session->failures = was_of_use ? 0 : session->failures + 1;
  // The delay doubles up to 1.6 s: a peer that is gone for good costs little, and one that restarts
  // is met soon.
  session->next_hello = owner_.clock->Now() + kRetryDelay * (1 << std::min(session->failures, 5));
  DueAt(session->next_hello);
  if (!options().always && session->failures >= kMostFailures) ToNetwork(session);
}

void FabricSessions::ToNetwork(FabricSession* session) {
  LogWarning("connection %d goes over the network from now on", session->connection);
  const ConnectionId connection = session->connection;
  owner_.set_way(connection, /*by_fabric=*/false);
  owner_.counters->transport.bytes_queued.Remove(std::exchange(session->waiting_bytes, 0));
  for (Outgoing& each : std::exchange(session->waiting, {})) {
    owner_.send_by_network(std::move(each));
  }
  sessions_.erase(connection);
}

void FabricSessions::Remove(ConnectionId connection, const absl::Status& why) {
  FabricSession* const session = Find(connection);
  if (session == nullptr) return;
  Revoke(session, why);
  FailWaiting(session, why);
  owner_.set_way(connection, /*by_fabric=*/false);
  pending_.erase(connection);
  sessions_.erase(connection);
}

void FabricSessions::RemoveAll(const absl::Status& why) {
  std::vector<ConnectionId> all;
  for (const auto& [connection, session] : sessions_) all.push_back(connection);
  for (const ConnectionId connection : all) Remove(connection, why);
}

void FabricSessions::Cut(FabricSession* session, const char* why) {
  const ConnectionId connection = session->connection;
  log_.Warning("cut connection %d over the fabric: %s", connection, why);
  const absl::Status status = Unavailable("send: connection %d was cut: %s", connection, why);
  if (session->is_connector) return EndMeeting(session, status);
  owner_.counters->transport.connections_cut.Add();
  // The network still has the connection, and cannot end it. Until it is gone there, too, frames
  // and hellos of this peer are dropped.
  cut_.insert(connection);
  owner_.cut(connection);
  Remove(connection, status);
  owner_.gone(connection);
}

void FabricSessions::Fail(Transport::SendDone done, absl::Status status) {
  owner_.counters->transport.sends_failed.Add();
  done(std::move(status));
}

void FabricSessions::FailWaiting(FabricSession* session, const absl::Status& why) {
  owner_.counters->transport.bytes_queued.Remove(std::exchange(session->waiting_bytes, 0));
  for (Outgoing& each : std::exchange(session->waiting, {})) Fail(std::move(each.done), why);
}

}  // namespace bdn
