// How a fabric's poller meets peers: what the ends say of themselves, and grant.

#include <algorithm>
#include <utility>

#include "common/base/endian.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/transport/fabric/fabric_poller.h"

namespace bdn {
namespace {

constexpr uint32_t kBlockBytes = 32768;
constexpr absl::Duration kHelloInterval = absl::Seconds(1);

uint64_t RandomNumber() {
  const std::string random = RandomSecret();
  return std::max<uint64_t>(1, LoadLittle<uint64_t>(std::as_bytes(std::span(random))));
}

}  // namespace

void FabricPoller::AddConnector(ConnectionId connection) {
  auto session = std::make_unique<FabricSession>();
  session->connection = connection;
  session->is_connector = true;
  FabricSession* const added = session.get();
  sessions_[connection] = std::move(session);
  Greet(added);
}

// What this end lets the other do.
absl::Status FabricPoller::Grant(FabricSession* session) {
  const std::optional<uint32_t> immediate = numbers_.Take(session);
  if (!immediate.has_value()) {
    return ResourceExhausted("a fabric of %d windows has no more", kMostFabricWindows);
  }
  const uint64_t token = RandomNumber();
  const uint32_t number = FabricNumber(*immediate);
  absl::StatusOr<std::shared_ptr<FabricWindow>> window = FabricWindow::Make(
      *port_->endpoint,
      {.block_bytes = kBlockBytes,
       .num_blocks = static_cast<uint32_t>(options_.window_bytes / kBlockBytes),
       .immediate = *immediate,
       .token = token,
       .max_payload_bytes = options_.max_payload_bytes,
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

void FabricPoller::Greet(FabricSession* session) {
  session->next_hello = owner_.clock->Now() + kHelloInterval;
  DueAt(session->next_hello);
  if (session->tag == 0) {
    if (absl::Status granted = Grant(session); !granted.ok()) {
      return OnRefusal(session, std::string(granted.message()));
    }
    session->id = RandomNumber();
    session->own.kind = FabricHandshake::Kind::kHello;
    session->own.session = session->id;
  }
  owner_.say(session->connection, session->own);
}

absl::Status FabricPoller::Accept(FabricSession* session, const FabricHandshake& peer) {
  BDN_ASSIGN_OR_RETURN(session->address, port_->endpoint->AddPeer(peer.address));
  session->peer = peer;
  session->peer_window.emplace(peer.grant);
  session->state = FabricSession::State::kUp;
  session->has_asked = false;
  session->has_heard = false;
  session->refusal = absl::OkStatus();
  pending_.insert(session->connection);
  return absl::OkStatus();
}

void FabricPoller::OnHandshake(ConnectionId from,
                               const absl::StatusOr<FabricHandshake>& handshake) {
  if (cut_.contains(from)) return;
  FabricSession* const session = Find(from);
  const bool is_of_connector = session != nullptr && session->is_connector;
  const bool is_hello = handshake.ok() && handshake->kind == FabricHandshake::Kind::kHello;
  if (!handshake.ok() || is_hello == is_of_connector) {
    owner_.counters->transport.frames_malformed.Add();
    return;
  }
  if (is_hello) return OnHello(from, *handshake);
  if (session == nullptr || handshake->session != session->id) return;  // of a former meeting
  if (handshake->kind == FabricHandshake::Kind::kRefusal) {
    return OnRefusal(session, "the peer says: " + Printable(handshake->refusal));
  }
  OnWelcome(session, *handshake);
}

void FabricPoller::OnHello(ConnectionId from, const FabricHandshake& hello) {
  FabricSession* session = Find(from);
  if (session != nullptr && session->id == hello.session && session->peer == hello) {
    return owner_.say(from, session->own);
  }
  if (session != nullptr) Remove(from, Unavailable("send: connection %d was met anew", from));
  const std::optional<PublicKey> key = owner_.key_of(from);
  if (!key.has_value() || !Admits(*key)) return;  // the network is about to end it
  absl::Status status;
  if (hello.provider != port_->endpoint->provider()) {
    status = FailedPrecondition("its fabric-provider is %s", port_->endpoint->provider());
  } else {
    auto fresh = std::make_unique<FabricSession>();
    session = fresh.get();
    session->connection = from;
    session->id = hello.session;
    session->key = *key;
    sessions_[from] = std::move(fresh);
    status = Grant(session);
    if (status.ok()) status = Accept(session, hello);
  }
  if (!status.ok()) {
    log_.Warning("connection %d is not met over the fabric: %s", from, status.message());
    Remove(from, status);
    return owner_.say(from, {.kind = FabricHandshake::Kind::kRefusal,
                             .session = hello.session,
                             .refusal = std::string(status.message())});
  }
  session->own.kind = FabricHandshake::Kind::kWelcome;
  session->own.session = hello.session;
  owner_.set_way(from, /*by_fabric=*/true);
  owner_.say(from, session->own);
}

void FabricPoller::OnWelcome(FabricSession* session, const FabricHandshake& welcome) {
  const absl::Time now = owner_.clock->Now();
  session->heard_at = now;
  if (session->state == FabricSession::State::kUp) {
    if (session->peer == welcome) return;
    return EndMeeting(session, Unavailable("send: the peer has met us anew"));
  }
  if (welcome.provider != port_->endpoint->provider()) {
    return OnRefusal(session, "the peer's fabric-provider is " + Printable(welcome.provider));
  }
  if (absl::Status accepted = Accept(session, welcome); !accepted.ok()) {
    return OnRefusal(session, std::string(accepted.message()));
  }
  const absl::Duration silence = options_.silence_timeout;
  session->next_hello =
      now + (silence > absl::ZeroDuration() ? std::max(silence / 5, absl::Milliseconds(100))
                                            : kHelloInterval);
  DueAt(session->next_hello);
}

void FabricPoller::OnRefusal(FabricSession* session, const std::string& why) {
  log_.Warning("connection %d does not come over the fabric: %s", session->connection, why);
  const absl::Status refusal =
      Unavailable("send: connection %d does not come over the fabric %s, and transport is rdma: %s",
                  session->connection, port_->endpoint->provider(), why);
  Revoke(session, refusal);
  if (!options_.always) return ToNetwork(session);
  session->refusal = refusal;
  session->next_hello = owner_.clock->Now() + kHelloInterval;
  DueAt(session->next_hello);
  FailWaiting(session, refusal);
}

void FabricPoller::OnTime(absl::Time now) {
  if (now < due_) return;
  due_ = absl::InfiniteFuture();
  std::vector<FabricSession*> due;
  for (const auto& [connection, session] : sessions_) {
    if (session->is_connector && session->next_hello <= now) due.push_back(session.get());
    if (session->no_room_since + kMostNoRoom <= now) pending_.insert(connection);
  }
  const absl::Duration silence = options_.silence_timeout;
  for (FabricSession* const session : due) {
    if (session->state == FabricSession::State::kGreeting) {
      Greet(session);
    } else if (silence > absl::ZeroDuration() && now - session->heard_at > silence) {
      EndMeeting(session, Unavailable("send: connection %d: nothing was heard of the peer for %s",
                                      session->connection, absl::FormatDuration(silence)));
    } else {
      owner_.say(session->connection, session->own);
      session->next_hello = now + (silence > absl::ZeroDuration() ? silence / 5 : kHelloInterval);
    }
  }
  for (const auto& [connection, session] : sessions_) {
    if (session->is_connector) DueAt(session->next_hello);
    // Of those that are due now, when they could not go: soon again.
    DueAt(std::max(session->no_room_since + kMostNoRoom, now + kRetryDelay));
  }
}

void FabricPoller::Admit(const Admission& admission) {
  admitted_ = {admission.keys.begin(), admission.keys.end()};
  std::vector<ConnectionId> refused;
  for (const auto& [connection, session] : sessions_) {
    if (!session->is_connector && !Admits(session->key)) refused.push_back(connection);
  }
  for (const ConnectionId connection : refused) {
    Remove(connection, Unavailable("send: connection %d: its key has left the job", connection));
  }
}

}  // namespace bdn
