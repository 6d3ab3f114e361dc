#include "common/transport/fabric/fabric_poller.h"

#include <algorithm>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr int kMostFailures = 3;  // of meetings, where there is a network to take instead
constexpr char kBrokeRules[] = "it does not keep to the rules";

}  // namespace

absl::StatusOr<std::unique_ptr<FabricPoller>> FabricPoller::Make(Owner owner) {
  std::unique_ptr<FabricPoller> poller(new FabricPoller(std::move(owner)));
  BDN_ASSIGN_OR_RETURN(poller->port_, FabricPort::Open(poller->options_.endpoint,
                                                       &poller->owner_.counters->bytes_copied));
  return poller;
}

FabricPoller::~FabricPoller() { Close(); }

std::shared_ptr<MemoryDomain> FabricPoller::memory() const {
  if (port_->arena == nullptr) return HostMemory();
  return port_->arena;
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
  const bool was_busy = HandleEvents();
  is_stuck_ = false;
  const std::vector<ConnectionId> pending(pending_.begin(), pending_.end());
  for (const ConnectionId connection : pending) {
    FabricSession* const session = Find(connection);
    pending_.erase(connection);
    if (session == nullptr || session->state != FabricSession::State::kUp) continue;
    if (SendCredits(session)) Flush(session);
  }
  const absl::Status posted = port_->receiver->PostFree();
  if (!posted.ok() && !absl::IsUnavailable(posted)) log_.Warning("%s", posted.message());
  return was_busy;
}

// ---- What has come

bool FabricPoller::HandleEvents() {
  events_.clear();
  if (!port_->endpoint->Poll(&events_)) return false;
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
    port_->receiver->Return(event);
    owner_.counters->transport.frames_malformed.Add();
    return;
  }
  FabricSender::Ended ended = port_->sender->OnEvent(event);
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
  const ByteSpan message = port_->receiver->MessageOf(event);
  const absl::StatusOr<FabricPrefix> prefix = DecodeFabricPrefix(message);
  FabricSession* const session = prefix.ok() ? numbers_.Find(prefix->number) : nullptr;
  // Of a former meeting, or of somebody who was never met.
  if (session == nullptr || session->own.token != prefix->token) {
    owner_.counters->transport.frames_malformed.Add();
    return port_->receiver->Return(event);
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
      Frame frame{*header, Buffer(), /*is_of_host=*/false, /*is_lent=*/false};
      if (header->payload_bytes > 0) {
        frame.payload = port_->receiver->Lend(event, kFabricHeadBytes);
      } else {
        port_->receiver->Return(event);
      }
      return Deliver(session, std::move(frame));
    }
    owner_.counters->transport.frames_malformed.Add();
  }
  port_->receiver->Return(event);
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
  numbers_.Give(session->own.grant.immediate);
  std::vector<Transport::SendDone> done;
  const bool was_up = session->state == FabricSession::State::kUp;
  if (was_up) done = port_->sender->Abandon(session->tag, session->peer.address);
  port_->Leave(was_up ? session->peer.address : "", session->window.get());
  session->window.reset();
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
  if (port_ != nullptr) port_->Close();
}

}  // namespace bdn
