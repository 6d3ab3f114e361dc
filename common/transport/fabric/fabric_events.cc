#include "common/transport/fabric/fabric_events.h"

#include <algorithm>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr char kBrokeRules[] = "it does not keep to the rules";
// Rounds of events before a connection's end is told: peers that go on sending must not keep it
// back.
constexpr int kMostDrains = 256;

}  // namespace

bool FabricEvents::HandleAll() {
  events_.clear();
  if (!sessions_.port()->endpoint->Poll(&events_)) return false;
  for (const FabricEvent& event : std::exchange(events_, {})) OnEvent(event);
  return true;
}

void FabricEvents::OnEvent(const FabricEvent& event) {
  const bool failed = event.kind == FabricEvent::Kind::kFailed;
  if (event.kind == FabricEvent::Kind::kWritten) return OnWritten(event.immediate);
  if (event.operation == nullptr) {
    if (failed) sessions_.log()->Warning("%s", event.status.message());
    return;
  }
  if (!event.operation->is_receive) return OnSent(event);
  if (!failed) return OnMessage(event);
  sessions_.port()->receiver->Return(event);
  CountMalformed();
}

void FabricEvents::OnSent(const FabricEvent& event) {
  FabricSender::Ended ended = sessions_.port()->sender->OnEvent(event);
  FabricSession* const session = sessions_.FindByTag(ended.session);
  if (session != nullptr && (!session->waiting.empty() || !session->credits.empty())) {
    sessions_.AddPending(session->connection);
  }
  if (event.kind != FabricEvent::Kind::kFailed) {
    if (ended.done != nullptr) ended.done(absl::OkStatus());
    return;
  }
  const absl::Status status =
      session == nullptr
          ? event.status
          : Annotate(event.status, absl::StrFormat("send to connection %d", session->connection));
  if (ended.done != nullptr) sessions_.Fail(std::move(ended.done), status);
  if (session != nullptr) sessions_.EndMeeting(session, status);
}

void FabricEvents::OnMessage(const FabricEvent& event) {
  FabricReceiver& receiver = *sessions_.port()->receiver;
  const ByteSpan message = receiver.MessageOf(event);
  const absl::StatusOr<FabricPrefix> prefix = DecodeFabricPrefix(message);
  FabricSession* const session = prefix.ok() ? sessions_.FindByNumber(prefix->number) : nullptr;
  // A message of a former meeting, or of a sender that was never met.
  if (session == nullptr || session->own.token != prefix->token) {
    CountMalformed();
    return receiver.Return(event);
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
    if (OnFrame(session, *prefix, event)) return;
    CountMalformed();
  }
  receiver.Return(event);
  if (!keeps_rules) sessions_.Cut(session, kBrokeRules);
}

bool FabricEvents::OnFrame(FabricSession* session, const FabricPrefix& prefix,
                           const FabricEvent& event) {
  FabricReceiver& receiver = *sessions_.port()->receiver;
  const ByteSpan message = receiver.MessageOf(event);
  const absl::StatusOr<FrameHeader> header =
      DecodeHeader(message.subspan(kFabricPrefixBytes)
                       .first(std::min(kHeaderBytes, message.size() - kFabricPrefixBytes)));
  if (!header.ok() || message.size() - kFabricHeadBytes != header->payload_bytes ||
      header->payload_bytes != prefix.payload_bytes) {
    return false;
  }
  Frame frame{*header, Buffer(), /*is_of_host=*/false, /*is_lent=*/false};
  if (header->payload_bytes > 0) {
    frame.payload = receiver.Lend(event, kFabricHeadBytes);
  } else {
    receiver.Return(event);
  }
  Deliver(session, std::move(frame));
  return true;
}

bool FabricEvents::OnCredits(FabricSession* session, ByteSpan blocks) {
  for (size_t at = 0; at < blocks.size(); at += sizeof(uint32_t)) {
    if (!session->peer_window->Give(LoadLittle<uint32_t>(blocks, at))) return false;
  }
  session->has_asked = false;
  sessions_.AddPending(session->connection);
  return true;
}

void FabricEvents::OnWritten(uint32_t immediate) {
  FabricSession* const session = sessions_.FindByNumber(FabricNumber(immediate));
  Frame frame;
  const FabricWindow::Arrival arrival =
      session == nullptr
          ? FabricWindow::Arrival::kMalformed
          : session->window->Arrive(FabricImmediate::Decode(immediate).block, &frame);
  switch (arrival) {
    case FabricWindow::Arrival::kMalformed:
      return CountMalformed();
    case FabricWindow::Arrival::kBroken:
      return sessions_.Cut(session, kBrokeRules);
    case FabricWindow::Arrival::kFrame:
      session->has_heard = true;
      session->failures = 0;
      return Deliver(session, std::move(frame));
  }
}

void FabricEvents::Deliver(FabricSession* session, Frame frame) {
  const FabricOwner& owner = sessions_.owner();
  owner.counters->transport.frames_received.Add();
  owner.counters->transport.bytes_received.Add(FabricBytesOf(frame));
  owner.deliver(session->connection, std::move(frame));
}

void FabricEvents::OnGone(ConnectionId connection) {
  if (sessions_.ForgetCut(connection)) return;  // this was told when it was cut
  // The network's news may overtake frames on the fabric, and "gone" promises that none follows.
  for (int i = 0; i < kMostDrains && HandleAll(); ++i) {
  }
  sessions_.Remove(connection, Unavailable("send: connection %d is gone", connection));
  sessions_.owner().gone(connection);
}

}  // namespace bdn
