#include "common/transport/fabric/fabric_poller.h"

#include <algorithm>
#include <utility>

#include "common/base/endian.h"
#include "common/base/secret.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr uint32_t kBlockBytes = 32768;
constexpr absl::Duration kHelloInterval = absl::Seconds(1);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
constexpr absl::Duration kMostNoRoom = absl::Milliseconds(200);
constexpr int kMostFailures = 3;  // of meetings, where there is a network to take instead
constexpr int kMostDrains = 256;  // so that others do not keep the end of one from being told
constexpr char kBrokeRules[] = "it does not keep to the rules";

uint64_t RandomNumber() {
  const std::string random = RandomSecret();
  return std::max<uint64_t>(1, LoadLittle<uint64_t>(std::as_bytes(std::span(random))));
}

uint64_t BytesOf(const Frame& frame) { return kHeaderBytes + frame.payload.size(); }

}  // namespace

absl::StatusOr<std::unique_ptr<FabricPoller>> FabricPoller::Make(Owner owner) {
  std::unique_ptr<FabricPoller> poller(new FabricPoller(std::move(owner)));
  BDN_ASSIGN_OR_RETURN(poller->endpoint_, FabricEndpoint::Open(poller->options_.endpoint));
  FabricEndpoint* const endpoint = poller->endpoint_.get();
  constexpr size_t kMessage = kFabricHeadBytes + kFabricMessageBytes;
  if (endpoint->max_message_bytes() < kMessage) {
    return FailedPrecondition("fabric provider %s: its messages have %d bytes, %d are needed",
                              endpoint->provider(), endpoint->max_message_bytes(), kMessage);
  }
  if (endpoint->needs_registered_sends()) {
    poller->arena_ = std::make_shared<FabricArena>(endpoint, poller->retired_);
  }
  BDN_ASSIGN_OR_RETURN(poller->sender_,
                       FabricSender::Make(endpoint, poller->arena_, poller->retired_,
                                          &poller->owner_.counters->bytes_copied));
  BDN_ASSIGN_OR_RETURN(poller->receiver_,
                       FabricReceiver::Make(endpoint, kMessage, poller->retired_,
                                            &poller->owner_.counters->bytes_copied));
  return poller;
}

FabricPoller::~FabricPoller() { Close(); }

std::shared_ptr<MemoryDomain> FabricPoller::memory() const {
  if (arena_ == nullptr) return HostMemory();
  return arena_;
}

FabricSession* FabricPoller::Find(ConnectionId connection) const {
  const auto found = sessions_.find(connection);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void FabricPoller::Apply(FabricMailbox::Requests* requests) {
  for (const ConnectionId connection : requests->connectors) AddConnector(connection);
  if (requests->admission.has_value()) Admit(*requests->admission);
  for (const auto& [from, handshake] : requests->handshakes) OnHandshake(from, handshake);
  for (Outgoing& outgoing : requests->frames) Enqueue(std::move(outgoing));
  for (const uint32_t number : requests->released) {
    FabricSession* const session = numbers_.Find(number);
    if (session == nullptr) continue;
    for (const uint32_t block : session->window->TakeReleased()) session->credits.push_back(block);
    pending_.insert(session->connection);
  }
  for (const ConnectionId connection : requests->ended) {
    const FabricSession* const session = Find(connection);
    if (session == nullptr || !session->is_connector) continue;  // a listener's own is not for it
    Remove(connection, Unavailable("send: connection %d is gone", connection));
  }
  for (const ConnectionId connection : requests->gone) OnGone(connection);
}

bool FabricPoller::Progress() {
  bool was_busy = HandleEvents();
  is_stuck_ = false;
  const std::vector<ConnectionId> pending(pending_.begin(), pending_.end());
  for (const ConnectionId connection : pending) {
    FabricSession* const session = Find(connection);
    pending_.erase(connection);
    if (session == nullptr || session->state != FabricSession::State::kUp) continue;
    if (SendCredits(session)) Flush(session);
  }
  const absl::Status posted = receiver_->PostFree();
  if (!posted.ok() && !absl::IsUnavailable(posted)) log_.Warning("%s", posted.message());
  return was_busy;
}

// ---- Meeting

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
      *endpoint_,
      {.block_bytes = kBlockBytes,
       .num_blocks = static_cast<uint32_t>(options_.window_bytes / kBlockBytes),
       .immediate = *immediate,
       .token = token,
       .max_payload_bytes = options_.max_payload_bytes,
       .is_of_host = endpoint_->is_of_host(),
       .copied = &owner_.counters->bytes_copied,
       .released =
           [mailbox = owner_.mailbox, number] {
             mailbox->Ask([number](auto* requests) { requests->released.push_back(number); });
           }},
      retired_);
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
                  .provider = endpoint_->provider(),
                  .address = endpoint_->address()};
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
  BDN_ASSIGN_OR_RETURN(session->address, endpoint_->AddPeer(peer.address));
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
  if (hello.provider != endpoint_->provider()) {
    status = FailedPrecondition("its fabric-provider is %s", endpoint_->provider());
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
  if (welcome.provider != endpoint_->provider()) {
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
                  session->connection, endpoint_->provider(), why);
  Revoke(session, refusal);
  if (!options_.always) return ToNetwork(session);
  session->refusal = refusal;
  session->next_hello = owner_.clock->Now() + kHelloInterval;
  DueAt(session->next_hello);
  FailWaiting(session, refusal);
}

void FabricPoller::OnTime(absl::Time now) {
  if (now < due_) return;
  std::vector<FabricSession*> due;
  for (const auto& [connection, session] : sessions_) {
    if (session->is_connector && session->next_hello <= now) due.push_back(session.get());
    if (session->no_room_since + kMostNoRoom <= now) pending_.insert(connection);
  }
  due_ = absl::InfiniteFuture();
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

// ---- Sending

void FabricPoller::Fail(Transport::SendDone done, absl::Status status) {
  owner_.counters->transport.sends_failed.Add();
  done(std::move(status));
}

void FabricPoller::Enqueue(Outgoing outgoing) {
  FabricSession* const session = Find(outgoing.to);
  if (session == nullptr) return owner_.send_by_network(std::move(outgoing));
  const uint64_t bytes = BytesOf(outgoing.frame);
  absl::Status status;
  if (outgoing.frame.payload.size() > options_.max_payload_bytes) {
    status = InvalidArgument("%s: payload of %d bytes, at most %d", Describe(outgoing.frame.header),
                             outgoing.frame.payload.size(), options_.max_payload_bytes);
  } else if (session->state == FabricSession::State::kGreeting) {
    status = session->refusal;
  }
  if (status.ok() && session->state == FabricSession::State::kUp && session->waiting.empty()) {
    if (TrySend(session, &outgoing) != Sent::kWaits) return;
  }
  if (status.ok()) status = CheckMayWait(*session, bytes);
  if (!status.ok()) return Fail(std::move(outgoing.done), std::move(status));
  session->waiting_bytes += bytes;
  owner_.counters->transport.bytes_queued.Add(bytes);
  session->waiting.push_back(std::move(outgoing));
  pending_.insert(session->connection);
}

absl::Status FabricPoller::CheckMayWait(const FabricSession& session, uint64_t bytes) const {
  const bool is_too_much =
      session.waiting_bytes + bytes > options_.max_bytes_queued ||
      session.waiting.size() >= static_cast<size_t>(options_.max_frames_queued);
  if (session.is_connector || !is_too_much) return absl::OkStatus();
  return ResourceExhausted("send: %d frames of %d bytes wait for connection %d already",
                           session.waiting.size(), session.waiting_bytes, session.connection);
}

FabricPoller::Sent FabricPoller::TrySend(FabricSession* session, Outgoing* outgoing) {
  if (!IsMessage(*session, outgoing->frame)) return TryWrite(session, outgoing);
  const absl::Status sent = SendMessage(session, outgoing);
  if (sent.ok()) return Sent::kSent;
  if (absl::IsUnavailable(sent)) {
    is_stuck_ = true;
    return Sent::kWaits;
  }
  Fail(std::move(outgoing->done), Unavailable("%s", sent.message()));
  EndMeeting(session, sent);
  return Sent::kEnded;
}

bool FabricPoller::IsMessage(const FabricSession& session, const Frame& frame) const {
  const size_t bytes = frame.payload.size();
  return bytes <= kFabricMessageBytes && kFabricHeadBytes + bytes <= session.peer.message_bytes;
}

absl::Status FabricPoller::SendMessage(FabricSession* session, Outgoing* outgoing) {
  Frame& frame = outgoing->frame;
  const FabricPrefix prefix{.number = session->peer.number,
                            .token = session->peer.token,
                            .payload_bytes = frame.payload.size()};
  const uint64_t bytes = BytesOf(frame);
  BDN_RETURN_IF_ERROR(sender_->Send({session->address, session->peer.address, session->tag},
                                    {prefix, &frame.header, &frame.payload, &outgoing->done}));
  owner_.counters->transport.frames_sent.Add();
  owner_.counters->transport.bytes_sent.Add(bytes);
  return absl::OkStatus();
}

bool FabricPoller::SendNow(Outgoing* outgoing) {
  if (is_closed_) return false;
  FabricSession* const session = Find(outgoing->to);
  return session != nullptr && session->state == FabricSession::State::kUp &&
         session->waiting.empty() && IsMessage(*session, outgoing->frame) &&
         SendMessage(session, outgoing).ok();
}

FabricPoller::Sent FabricPoller::TryWrite(FabricSession* session, Outgoing* outgoing) {
  Frame& frame = outgoing->frame;
  const uint64_t frame_bytes = kFabricHeadBytes + frame.payload.size();
  if (frame_bytes >
      std::min(session->peer_window->max_frame_bytes(), endpoint_->max_message_bytes())) {
    owner_.send_by_network(std::move(*outgoing));
    return Sent::kSent;
  }
  const auto place = session->peer_window->Take(frame_bytes);
  if (!place.has_value()) return OnNoRoom(session, outgoing);
  session->no_room_since = absl::InfiniteFuture();
  const FabricPrefix prefix{.number = session->peer.number,
                            .token = session->peer.token,
                            .payload_bytes = frame.payload.size()};
  const uint64_t bytes = BytesOf(frame);
  const absl::Status written =
      sender_->Write({session->address, session->peer.address, session->tag},
                     {prefix, &frame.header, &frame.payload, &outgoing->done}, *place);
  if (written.ok()) {
    owner_.counters->transport.frames_sent.Add();
    owner_.counters->transport.bytes_sent.Add(bytes);
    return Sent::kSent;
  }
  session->peer_window->Give(place->block);
  if (absl::IsUnavailable(written)) {
    is_stuck_ = true;
    return Sent::kWaits;
  }
  Fail(std::move(outgoing->done), Unavailable("%s", written.message()));
  EndMeeting(session, written);
  return Sent::kEnded;
}

FabricPoller::Sent FabricPoller::OnNoRoom(FabricSession* session, Outgoing* outgoing) {
  const absl::Time now = owner_.clock->Now();
  session->no_room_since = std::min(session->no_room_since, now);
  DueAt(session->no_room_since + kMostNoRoom);
  if (now - session->no_room_since >= kMostNoRoom) {
    owner_.send_by_network(std::move(*outgoing));
    return Sent::kSent;
  }
  if (!session->has_asked) {
    const FabricPrefix want{.kind = FabricPrefix::Kind::kWantCredits,
                            .number = session->peer.number,
                            .token = session->peer.token};
    session->has_asked = SendPlain(session, want, Buffer()).ok();
    if (!session->has_asked) is_stuck_ = true;
  }
  return Sent::kWaits;
}

absl::Status FabricPoller::SendPlain(FabricSession* session, const FabricPrefix& prefix,
                                     Buffer body) {
  return sender_->Send({session->address, session->peer.address, session->tag},
                       {prefix, nullptr, &body, nullptr});
}

void FabricPoller::Flush(FabricSession* session) {
  const ConnectionId connection = session->connection;
  while (!session->waiting.empty()) {
    const uint64_t bytes = BytesOf(session->waiting.front().frame);
    Outgoing next = std::move(session->waiting.front());
    session->waiting.pop_front();
    session->waiting_bytes -= bytes;
    owner_.counters->transport.bytes_queued.Remove(bytes);
    const Sent sent = TrySend(session, &next);
    if (sent == Sent::kEnded) return;
    if (sent == Sent::kSent) continue;
    session->waiting_bytes += bytes;
    owner_.counters->transport.bytes_queued.Add(bytes);
    session->waiting.push_front(std::move(next));
    if (is_stuck_) pending_.insert(connection);  // else credits bring it back
    return;
  }
}

bool FabricPoller::SendCredits(FabricSession* session) {
  const size_t most =
      (std::min<size_t>(session->peer.message_bytes, kFabricHeadBytes + kFabricMessageBytes) -
       kFabricPrefixBytes) /
      sizeof(uint32_t);
  while (!session->credits.empty()) {
    const size_t count = std::min(session->credits.size(), most);
    const auto blocks = std::as_bytes(std::span(session->credits).first(count));
    const FabricPrefix prefix{.kind = FabricPrefix::Kind::kCredits,
                              .number = session->peer.number,
                              .count = static_cast<uint32_t>(count),
                              .token = session->peer.token};
    const absl::Status sent = SendPlain(session, prefix, Buffer::CopyOf(blocks));
    if (absl::IsUnavailable(sent)) {
      is_stuck_ = true;
      pending_.insert(session->connection);
      return true;
    }
    if (!sent.ok()) {
      EndMeeting(session, sent);
      return false;
    }
    session->credits.erase(session->credits.begin(),
                           session->credits.begin() + static_cast<ptrdiff_t>(count));
  }
  return true;
}

// ---- What has come

bool FabricPoller::HandleEvents() {
  events_.clear();
  if (!endpoint_->Poll(&events_)) return false;
  for (const FabricEvent& event : std::exchange(events_, {})) OnEvent(event);
  return true;
}

void FabricPoller::OnEvent(const FabricEvent& event) {
  const bool failed = event.kind == FabricEvent::Kind::kFailed;
  if (event.kind == FabricEvent::Kind::kWritten) return OnWritten(event.immediate);
  if (event.operation == nullptr) {
    if (failed) log_.Warning("%s", event.status.message());
    return;
  }
  if (event.operation->is_receive) {
    if (!failed) return OnMessage(event);
    receiver_->Return(event);
    owner_.counters->transport.frames_malformed.Add();
    return;
  }
  FabricSender::Ended ended = sender_->OnEvent(event);
  const auto found = by_tag_.find(ended.session);
  FabricSession* const session = found == by_tag_.end() ? nullptr : found->second;
  if (session != nullptr && (!session->waiting.empty() || !session->credits.empty())) {
    pending_.insert(session->connection);
  }
  if (failed) {
    const absl::Status status =
        session == nullptr
            ? event.status
            : Annotate(event.status, absl::StrFormat("send to connection %d", session->connection));
    if (ended.done != nullptr) Fail(std::move(ended.done), status);
    if (session != nullptr) EndMeeting(session, status);
    return;
  }
  if (ended.done != nullptr) ended.done(absl::OkStatus());
}

void FabricPoller::OnMessage(const FabricEvent& event) {
  const ByteSpan message = receiver_->MessageOf(event);
  const absl::StatusOr<FabricPrefix> prefix = DecodeFabricPrefix(message);
  FabricSession* const session = prefix.ok() ? numbers_.Find(prefix->number) : nullptr;
  // Of a former meeting, or of somebody who was never met.
  if (session == nullptr || session->own.token != prefix->token) {
    owner_.counters->transport.frames_malformed.Add();
    return receiver_->Return(event);
  }
  session->has_heard = true;
  session->failures = 0;
  bool keeps_rules = true;
  if (prefix->kind == FabricPrefix::Kind::kWantCredits) {
    session->window->Want();
  } else if (prefix->kind == FabricPrefix::Kind::kCredits) {
    const ByteSpan blocks = message.subspan(kFabricPrefixBytes);
    keeps_rules = session->state == FabricSession::State::kUp &&
                  blocks.size() == prefix->count * sizeof(uint32_t) && OnCredits(session, blocks);
  } else {
    const absl::StatusOr<FrameHeader> header =
        DecodeHeader(message.subspan(kFabricPrefixBytes)
                         .first(std::min(kHeaderBytes, message.size() - kFabricPrefixBytes)));
    if (header.ok() && message.size() - kFabricHeadBytes == header->payload_bytes &&
        header->payload_bytes == prefix->payload_bytes) {
      Frame frame{*header, Buffer(), endpoint_->is_of_host(), false};
      if (header->payload_bytes > 0) {
        frame.payload = receiver_->Lend(event, kFabricHeadBytes);
      } else {
        receiver_->Return(event);
      }
      return Deliver(session, std::move(frame));
    }
    owner_.counters->transport.frames_malformed.Add();
  }
  receiver_->Return(event);
  if (!keeps_rules) Cut(session, kBrokeRules);
}

bool FabricPoller::OnCredits(FabricSession* session, ByteSpan blocks) {
  for (size_t at = 0; at < blocks.size(); at += sizeof(uint32_t)) {
    if (!session->peer_window->Give(LoadLittle<uint32_t>(blocks, at))) return false;
  }
  session->has_asked = false;
  pending_.insert(session->connection);
  return true;
}

void FabricPoller::OnWritten(uint32_t immediate) {
  FabricSession* const session = numbers_.Find(FabricNumber(immediate));
  Frame frame;
  const FabricWindow::Arrival arrival =
      session == nullptr
          ? FabricWindow::Arrival::kMalformed
          : session->window->Arrive(FabricImmediate::Decode(immediate).block, &frame);
  switch (arrival) {
    case FabricWindow::Arrival::kMalformed:
      owner_.counters->transport.frames_malformed.Add();
      return;
    case FabricWindow::Arrival::kBroken:
      return Cut(session, kBrokeRules);
    case FabricWindow::Arrival::kFrame:
      session->has_heard = true;
      session->failures = 0;
      return Deliver(session, std::move(frame));
  }
}

void FabricPoller::Deliver(FabricSession* session, Frame frame) {
  owner_.counters->transport.frames_received.Add();
  owner_.counters->transport.bytes_received.Add(BytesOf(frame));
  owner_.deliver(session->connection, std::move(frame));
}

// ---- Ending

// What was granted is taken back, and what is on its way is not waited for.
void FabricPoller::Revoke(FabricSession* session, const absl::Status& why) {
  if (session->tag == 0) return;
  session->window->Revoke();
  session->window.reset();
  numbers_.Give(session->own.grant.immediate);
  std::vector<Transport::SendDone> done;
  if (session->state == FabricSession::State::kUp) {
    done = sender_->Abandon(session->tag, session->peer.address);
    endpoint_->RemovePeer(session->peer.address);
  }
  by_tag_.erase(session->tag);
  owner_.counters->sessions.Set(by_tag_.size());
  session->tag = 0;
  session->id = 0;  // a welcome that is late is none of the next meeting
  session->state = FabricSession::State::kGreeting;
  session->peer_window.reset();
  session->credits.clear();
  session->no_room_since = absl::InfiniteFuture();
  for (Transport::SendDone& each : done) Fail(std::move(each), why);
}

void FabricPoller::FailWaiting(FabricSession* session, const absl::Status& why) {
  owner_.counters->transport.bytes_queued.Remove(std::exchange(session->waiting_bytes, 0));
  for (Outgoing& each : std::exchange(session->waiting, {})) Fail(std::move(each.done), why);
}

// Something on the way failed. A connector meets its peer again; a listener waits for that.
void FabricPoller::EndMeeting(FabricSession* session, const absl::Status& why) {
  log_.Warning("the way over the fabric has ended: %s", why.message());
  if (!session->is_connector) return Remove(session->connection, Unavailable("%s", why.message()));
  const bool was_of_use = session->has_heard;
  Revoke(session, Unavailable("%s", why.message()));
  session->failures = was_of_use ? 0 : session->failures + 1;
  session->next_hello = owner_.clock->Now() + kRetryDelay * (1 << std::min(session->failures, 5));
  DueAt(session->next_hello);
  if (!options_.always && session->failures >= kMostFailures) ToNetwork(session);
}

void FabricPoller::ToNetwork(FabricSession* session) {
  LogWarning("connection %d goes over the network from now on", session->connection);
  const ConnectionId connection = session->connection;
  owner_.set_way(connection, /*by_fabric=*/false);
  owner_.counters->transport.bytes_queued.Remove(std::exchange(session->waiting_bytes, 0));
  for (Outgoing& each : std::exchange(session->waiting, {})) {
    owner_.send_by_network(std::move(each));
  }
  sessions_.erase(connection);
}

void FabricPoller::Remove(ConnectionId connection, const absl::Status& why) {
  FabricSession* const session = Find(connection);
  if (session == nullptr) return;
  Revoke(session, why);
  FailWaiting(session, why);
  owner_.set_way(connection, /*by_fabric=*/false);
  pending_.erase(connection);
  sessions_.erase(connection);
}

void FabricPoller::Cut(FabricSession* session, const char* why) {
  const ConnectionId connection = session->connection;
  log_.Warning("cut connection %d over the fabric: %s", connection, why);
  const absl::Status status = Unavailable("send: connection %d was cut: %s", connection, why);
  if (session->is_connector) return EndMeeting(session, status);
  owner_.counters->transport.connections_cut.Add();
  cut_.insert(connection);
  owner_.cut(connection);
  Remove(connection, status);
  owner_.gone(connection);
}

void FabricPoller::OnGone(ConnectionId connection) {
  if (cut_.erase(connection) > 0) return;
  for (int i = 0; i < kMostDrains && HandleEvents(); ++i) {
  }
  Remove(connection, Unavailable("send: connection %d is gone", connection));
  owner_.gone(connection);
}

void FabricPoller::Close() {
  if (std::exchange(is_closed_, true)) return;
  const absl::Status why = Unavailable("send: the transport was closed");
  std::vector<ConnectionId> all;
  for (const auto& [connection, session] : sessions_) all.push_back(connection);
  for (const ConnectionId connection : all) Remove(connection, why);
  if (arena_ != nullptr) arena_->Stop();
  if (endpoint_ != nullptr) endpoint_->Close();
  if (arena_ != nullptr) arena_->Close();
  sender_.reset();
  receiver_.reset();
  endpoint_.reset();
}

}  // namespace bdn
