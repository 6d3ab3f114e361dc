#include "common/transport/fabric/fabric_meetings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr absl::Duration kHelloInterval = absl::Seconds(1);

}  // namespace

void FabricMeetings::AddConnector(ConnectionId connection) {
  FabricSession* const session = sessions_.Add(connection);
  session->is_connector = true;
  Greet(session);
}

void FabricMeetings::Greet(FabricSession* session) {
  session->next_hello = sessions_.owner().clock->Now() + kHelloInterval;
  sessions_.DueAt(session->next_hello);
  if (session->tag == 0) {
    if (absl::Status granted = sessions_.Grant(session); !granted.ok()) {
      return OnRefusal(session, std::string(granted.message()));
    }
    session->id = RandomFabricNumber();
    session->own.kind = FabricHandshake::Kind::kHello;
    session->own.session = session->id;
  }
  sessions_.owner().say(session->connection, session->own);
}

absl::Status FabricMeetings::Accept(FabricSession* session, const FabricHandshake& peer) {
  BDN_ASSIGN_OR_RETURN(session->address, sessions_.port()->endpoint->AddPeer(peer.address));
  session->peer = peer;
  session->peer_window.emplace(peer.grant);
  session->state = FabricSession::State::kUp;
  session->has_asked = false;
  session->has_heard = false;
  session->refusal = absl::OkStatus();
  sessions_.AddPending(session->connection);
  return absl::OkStatus();
}

void FabricMeetings::OnHandshake(ConnectionId from,
                                 const absl::StatusOr<FabricHandshake>& handshake) {
  if (sessions_.IsCut(from)) return;
  FabricSession* const session = sessions_.Find(from);
  const bool is_of_connector = session != nullptr && session->is_connector;
  const bool is_hello = handshake.ok() && handshake->kind == FabricHandshake::Kind::kHello;
  if (!handshake.ok() || is_hello == is_of_connector) {
    sessions_.owner().counters->transport.frames_malformed.Add();
    return;
  }
  if (is_hello) return OnHello(from, *handshake);
  if (session == nullptr || handshake->session != session->id) return;  // of a former meeting
  if (handshake->kind == FabricHandshake::Kind::kRefusal) {
    return OnRefusal(session, "the peer says: " + Printable(handshake->refusal));
  }
  OnWelcome(session, *handshake);
}

void FabricMeetings::OnHello(ConnectionId from, const FabricHandshake& hello) {
  const FabricOwner& owner = sessions_.owner();
  FabricSession* session = sessions_.Find(from);
  // A connector repeats its hello to hear whether this end still knows it.
  if (session != nullptr && session->id == hello.session && session->peer == hello) {
    return owner.say(from, session->own);
  }
  // Another hello means that the connector has forgotten the meeting: the old window must be
  // revoked before a new one is granted.
  if (session != nullptr) {
    sessions_.Remove(from, Unavailable("send: connection %d was met anew", from));
  }
  const std::optional<PublicKey> key = owner.key_of(from);
  if (!key.has_value() || !Admits(*key)) return;  // the network is about to end the connection
  absl::Status status;
  const std::string& provider = sessions_.port()->endpoint->provider();
  if (hello.provider != provider) {
    status = FailedPrecondition("its fabric-provider is %s", provider);
  } else {
    session = sessions_.Add(from);
    session->id = hello.session;
    session->key = *key;
    status = sessions_.Grant(session);
    if (status.ok()) status = Accept(session, hello);
  }
  if (!status.ok()) {
    sessions_.log()->Warning("connection %d is not met over the fabric: %s", from,
                             status.message());
    sessions_.Remove(from, status);
    return owner.say(from, {.kind = FabricHandshake::Kind::kRefusal,
                            .session = hello.session,
                            .refusal = std::string(status.message())});
  }
  session->own.kind = FabricHandshake::Kind::kWelcome;
  session->own.session = hello.session;
  owner.set_way(from, /*by_fabric=*/true);
  owner.say(from, session->own);
}

void FabricMeetings::OnWelcome(FabricSession* session, const FabricHandshake& welcome) {
  const absl::Time now = sessions_.owner().clock->Now();
  session->heard_at = now;
  if (session->state == FabricSession::State::kUp) {
    if (session->peer == welcome) return;
    // The listener has granted another window, so it has revoked the one that we write to.
    return sessions_.EndMeeting(session, Unavailable("send: the peer has met us anew"));
  }
  if (welcome.provider != sessions_.port()->endpoint->provider()) {
    return OnRefusal(session, "the peer's fabric-provider is " + Printable(welcome.provider));
  }
  if (absl::Status accepted = Accept(session, welcome); !accepted.ok()) {
    return OnRefusal(session, std::string(accepted.message()));
  }
  const absl::Duration silence = sessions_.options().silence_timeout;
  // Five hellos fit into the silence that is allowed, so that one lost answer ends no meeting.
  session->next_hello =
      now + (silence > absl::ZeroDuration() ? std::max(silence / 5, absl::Milliseconds(100))
                                            : kHelloInterval);
  sessions_.DueAt(session->next_hello);
}

void FabricMeetings::OnRefusal(FabricSession* session, const std::string& why) {
  sessions_.log()->Warning("connection %d does not come over the fabric: %s", session->connection,
                           why);
  const absl::Status refusal =
      Unavailable("send: connection %d does not come over the fabric %s, and transport is rdma: %s",
                  session->connection, sessions_.port()->endpoint->provider(), why);
  sessions_.Revoke(session, refusal);
  if (!sessions_.options().always) return sessions_.ToNetwork(session);
  session->refusal = refusal;
  session->next_hello = sessions_.owner().clock->Now() + kHelloInterval;
  sessions_.DueAt(session->next_hello);
  sessions_.FailWaiting(session, refusal);
}

void FabricMeetings::OnTime(absl::Time now) {
  if (now < sessions_.due()) return;
  sessions_.ForgetDue();
  // Collected first: OnDue may remove sessions from the table.
  std::vector<FabricSession*> due;
  for (const auto& [connection, session] : sessions_.all()) {
    if (session->is_connector && session->next_hello <= now) due.push_back(session.get());
    if (session->RoomDeadline() <= now) sessions_.AddPending(connection);
  }
  for (FabricSession* const session : due) OnDue(session, now);
  for (const auto& [connection, session] : sessions_.all()) {
    if (session->is_connector) sessions_.DueAt(session->next_hello);
    // A session whose deadline has passed and that the provider still keeps waiting is looked at
    // again soon, not at once.
    sessions_.DueAt(std::max(session->RoomDeadline(), now + FabricSessions::kRetryDelay));
  }
}

void FabricMeetings::OnDue(FabricSession* session, absl::Time now) {
  const absl::Duration silence = sessions_.options().silence_timeout;
  if (session->state == FabricSession::State::kGreeting) {
    Greet(session);
  } else if (silence > absl::ZeroDuration() && now - session->heard_at > silence) {
    sessions_.EndMeeting(session,
                         Unavailable("send: connection %d: nothing was heard of the peer for %s",
                                     session->connection, absl::FormatDuration(silence)));
  } else {
    sessions_.owner().say(session->connection, session->own);
    session->next_hello = now + (silence > absl::ZeroDuration() ? silence / 5 : kHelloInterval);
  }
}

void FabricMeetings::Admit(const Admission& admission) {
  admitted_ = {admission.keys.begin(), admission.keys.end()};
  std::vector<ConnectionId> refused;
  for (const auto& [connection, session] : sessions_.all()) {
    if (!session->is_connector && !Admits(session->key)) refused.push_back(connection);
  }
  for (const ConnectionId connection : refused) {
    sessions_.Remove(connection,
                     Unavailable("send: connection %d: its key has left the job", connection));
  }
}

}  // namespace bdn
