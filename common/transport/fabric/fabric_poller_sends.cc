// What a fabric's poller sends: messages, writes into what peers have granted, and credits.

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/transport/fabric/fabric_poller.h"

namespace bdn {

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
  BDN_RETURN_IF_ERROR(
      port_->sender->Send({session->address, session->peer.address, session->tag},
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
      std::min(session->peer_window->max_frame_bytes(), port_->endpoint->max_message_bytes())) {
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
      port_->sender->Write({session->address, session->peer.address, session->tag},
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
  return port_->sender->Send({session->address, session->peer.address, session->tag},
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

}  // namespace bdn
