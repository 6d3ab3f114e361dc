#include "common/transport/fabric/fabric_sends.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace bdn {

void FabricSends::Enqueue(Outgoing outgoing) {
  FabricSession* const session = sessions_.Find(outgoing.to);
  if (session == nullptr) return sessions_.owner().send_by_network(std::move(outgoing));
  const uint64_t bytes = FabricBytesOf(outgoing.frame);
  const uint64_t most = sessions_.options().max_payload_bytes;
  absl::Status status;
  if (outgoing.frame.payload.size() > most) {
    status = InvalidArgument("%s: payload of %d bytes, at most %d", Describe(outgoing.frame.header),
                             outgoing.frame.payload.size(), most);
  } else if (session->state == FabricSession::State::kGreeting) {
    status = session->refusal;
  }
  if (status.ok() && session->state == FabricSession::State::kUp && session->waiting.empty()) {
    if (TrySend(session, &outgoing) != Sent::kWaits) return;
  }
  if (status.ok()) status = CheckMayWait(*session, bytes);
  if (!status.ok()) return sessions_.Fail(std::move(outgoing.done), std::move(status));
  session->waiting_bytes += bytes;
  sessions_.owner().counters->transport.bytes_queued.Add(bytes);
  session->waiting.push_back(std::move(outgoing));
  sessions_.AddPending(session->connection);
}

absl::Status FabricSends::CheckMayWait(const FabricSession& session, uint64_t bytes) const {
  const FabricOptions& options = sessions_.options();
  const bool is_too_much = session.waiting_bytes + bytes > options.max_bytes_queued ||
                           session.waiting.size() >= static_cast<size_t>(options.max_frames_queued);
  if (session.is_connector || !is_too_much) return absl::OkStatus();
  return ResourceExhausted("send: %d frames of %d bytes wait for connection %d already",
                           session.waiting.size(), session.waiting_bytes, session.connection);
}

FabricSends::Sent FabricSends::TrySend(FabricSession* session, Outgoing* outgoing) {
  if (!IsMessage(*session, outgoing->frame)) return TryWrite(session, outgoing);
  const absl::Status sent = SendMessage(session, outgoing);
  return sent.ok() ? Sent::kSent : OnFailure(session, outgoing, sent);
}

FabricSends::Sent FabricSends::OnFailure(FabricSession* session, Outgoing* outgoing,
                                         const absl::Status& failure) {
  if (absl::IsUnavailable(failure)) {
    is_stuck_ = true;
    return Sent::kWaits;
  }
  sessions_.Fail(std::move(outgoing->done), Unavailable("%s", failure.message()));
  sessions_.EndMeeting(session, failure);
  return Sent::kEnded;
}

bool FabricSends::IsMessage(const FabricSession& session, const Frame& frame) const {
  const size_t bytes = frame.payload.size();
  return bytes <= kFabricMessageBytes && kFabricHeadBytes + bytes <= session.peer.message_bytes;
}

absl::Status FabricSends::SendMessage(FabricSession* session, Outgoing* outgoing) {
  Frame& frame = outgoing->frame;
  const FabricPrefix prefix{.number = session->peer.number,
                            .token = session->peer.token,
                            .payload_bytes = frame.payload.size()};
  const uint64_t bytes = FabricBytesOf(frame);
  BDN_RETURN_IF_ERROR(
      sessions_.port()->sender->Send({session->address, session->peer.address, session->tag},
                                     {prefix, &frame.header, &frame.payload, &outgoing->done}));
  CountSent(bytes);
  return absl::OkStatus();
}

void FabricSends::CountSent(uint64_t bytes) {
  sessions_.owner().counters->transport.frames_sent.Add();
  sessions_.owner().counters->transport.bytes_sent.Add(bytes);
}

bool FabricSends::SendNow(Outgoing* outgoing) {
  FabricSession* const session = sessions_.Find(outgoing->to);
  return session != nullptr && session->state == FabricSession::State::kUp &&
         session->waiting.empty() && IsMessage(*session, outgoing->frame) &&
         SendMessage(session, outgoing).ok();
}

FabricSends::Sent FabricSends::TryWrite(FabricSession* session, Outgoing* outgoing) {
  Frame& frame = outgoing->frame;
  FabricPort& port = *sessions_.port();
  const uint64_t frame_bytes = kFabricHeadBytes + frame.payload.size();
  if (frame_bytes >
      std::min(session->peer_window->max_frame_bytes(), port.endpoint->max_message_bytes())) {
    sessions_.owner().send_by_network(std::move(*outgoing));
    return Sent::kSent;
  }
  const auto place = session->peer_window->Take(frame_bytes);
  if (!place.has_value()) return OnNoRoom(session, outgoing);
  session->no_room_since = absl::InfiniteFuture();
  const FabricPrefix prefix{.number = session->peer.number,
                            .token = session->peer.token,
                            .payload_bytes = frame.payload.size()};
  const uint64_t bytes = FabricBytesOf(frame);
  const absl::Status written =
      port.sender->Write({session->address, session->peer.address, session->tag},
                         {prefix, &frame.header, &frame.payload, &outgoing->done}, *place);
  if (written.ok()) {
    CountSent(bytes);
    return Sent::kSent;
  }
  session->peer_window->Give(place->block);
  return OnFailure(session, outgoing, written);
}

FabricSends::Sent FabricSends::OnNoRoom(FabricSession* session, Outgoing* outgoing) {
  const absl::Time now = sessions_.owner().clock->Now();
  session->no_room_since = std::min(session->no_room_since, now);
  sessions_.DueAt(session->RoomDeadline());
  // The peer may hold its blocks until it gets this very frame, so the frame cannot wait for ever.
  if (session->RoomDeadline() <= now) {
    sessions_.owner().send_by_network(std::move(*outgoing));
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

absl::Status FabricSends::SendPlain(FabricSession* session, const FabricPrefix& prefix,
                                    Buffer body) {
  return sessions_.port()->sender->Send({session->address, session->peer.address, session->tag},
                                        {prefix, nullptr, &body, nullptr});
}

void FabricSends::SendPending() {
  is_stuck_ = false;
  // The loop is over a copy, because sends make sessions pending again, and end others.
  for (const ConnectionId connection : sessions_.Pending()) {
    FabricSession* const session = sessions_.Find(connection);
    sessions_.DropPending(connection);
    if (session == nullptr || session->state != FabricSession::State::kUp) continue;
    // Credits go first: both ends may be waiting for them.
    if (SendCredits(session)) Flush(session);
  }
}

void FabricSends::Flush(FabricSession* session) {
  const ConnectionId connection = session->connection;
  TransportCounter& queued = sessions_.owner().counters->transport.bytes_queued;
  while (!session->waiting.empty()) {
    const uint64_t bytes = FabricBytesOf(session->waiting.front().frame);
    // Taken out of the queue before it is tried: where a send ends the session, the session fails
    // all frames that wait in it, and this one must end once.
    Outgoing next = std::move(session->waiting.front());
    session->waiting.pop_front();
    session->waiting_bytes -= bytes;
    queued.Remove(bytes);
    const Sent sent = TrySend(session, &next);
    if (sent == Sent::kEnded) return;
    if (sent == Sent::kSent) continue;
    session->waiting_bytes += bytes;
    queued.Add(bytes);
    session->waiting.push_front(std::move(next));
    if (is_stuck_) sessions_.AddPending(connection);  // otherwise credits make it pending again
    return;
  }
}

bool FabricSends::SendCredits(FabricSession* session) {
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
      sessions_.AddPending(session->connection);
      return true;
    }
    if (!sent.ok()) {
      sessions_.EndMeeting(session, sent);
      return false;
    }
    session->credits.erase(session->credits.begin(),
                           session->credits.begin() + static_cast<ptrdiff_t>(count));
  }
  return true;
}

}  // namespace bdn
