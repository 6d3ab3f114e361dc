#include "common/transport/shm/shm_channel.h"

#include <sys/socket.h>

#include <cstring>
#include <utility>

#include "common/base/status.h"
#include "common/transport/shm/shm_socket.h"

namespace bdn {
namespace {

// Frames of a connection that may be lent at a time, that is handed over in the peer's memory and
// not yet released. Receivers may hold them for long.
constexpr int kMaxLent = kShmSlots / 4;

}  // namespace

ShmChannel::ShmChannel(FileDescriptor socket, std::shared_ptr<SharedMemory> mine,
                       std::shared_ptr<SharedMemory> peers, std::shared_ptr<ShmArena> arena)
    : socket_(std::move(socket)),
      mine_(std::move(mine)),
      peers_(std::move(peers)),
      arena_(std::move(arena)),
      in_flight_(kShmSlots) {
  // The first frames then wait for no pages. Where it fails, pages come when they are touched.
  (void)mine_->Populate(0, mine_->size());
  (void)peers_->Populate(0, peers_->size());
  for (uint32_t token = kShmSlots; token > 0; --token) free_tokens_.push_back(token - 1);
}

// ---- Sending

ShmChannel::SendResult ShmChannel::Send(const Frame& frame) {
  ShmFrame entry = {};
  entry.header = EncodeHeader(frame.header);
  entry.bytes = frame.payload.size();
  if (entry.bytes > 0) {
    const auto place = arena_->Find(frame.payload.span());
    if (!place.has_value()) return SendResult::kBroken;
    entry.segment = place->segment;
    entry.offset = place->offset;
  }
  MutexLock lock(&send_mu_);
  if (!ReapLocked()) return SendResult::kBroken;
  if (free_tokens_.empty()) {
    // A release from now on wakes us. One just before may not have seen the flag, so there is a
    // second look; the fence keeps it from being made before the flag is set (Release has its
    // counterpart).
    own().wants_releases.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!ReapLocked()) return SendResult::kBroken;
    if (free_tokens_.empty()) return SendResult::kFull;
  }
  own().wants_releases.store(0, std::memory_order_relaxed);
  // The peer may be gone: the end of its socket says so, and not this send.
  if (entry.bytes > 0 && !SendSegments(entry.segment)) return SendResult::kFull;
  entry.token = free_tokens_.back();
  free_tokens_.pop_back();
  in_flight_[entry.token] = {true, frame.payload};
  // Fewer frames than there are slots are published and not released, so the peer has read the
  // frame that this slot held.
  ShmFrameWords& slot = own().frames[published_ % kShmSlots];
  std::array<uint64_t, std::tuple_size_v<ShmFrameWords>> words;
  std::memcpy(words.data(), &entry, sizeof(entry));
  for (size_t i = 0; i < words.size(); ++i) slot[i].store(words[i], std::memory_order_relaxed);
  // Publishes the words of the slot to the acquire load in Receive.
  own().published.store(++published_, std::memory_order_release);
  WakePeer();
  return SendResult::kSent;
}

bool ShmChannel::SendSegments(uint32_t last) {
  // Segments go in order and before the first frame in them is published, so that a receiver that
  // meets an unknown segment finds it at its socket.
  for (; segments_sent_ <= last; ++segments_sent_) {
    const std::shared_ptr<SharedMemory> memory = arena_->segment(segments_sent_);
    const ShmSegment packet{.index = segments_sent_, .bytes = memory->size()};
    if (!SendPacket(socket(), BytesOf(packet), memory->fd())) return false;
  }
  return true;
}

bool ShmChannel::Reap() {
  MutexLock lock(&send_mu_);
  return ReapLocked();
}

bool ShmChannel::ReapLocked() {
  const uint64_t released = peer().released.load(std::memory_order_acquire);
  // Nothing that the peer writes is believed: it cannot release more frames than were published,
  // nor a frame twice. Unsigned differences catch a count that goes back, too.
  if (released - reaped_ > published_ - reaped_) return false;
  for (; reaped_ < released; ++reaped_) {
    const uint32_t token = peer().tokens[reaped_ % kShmSlots].load(std::memory_order_relaxed);
    if (token >= kShmSlots || !in_flight_[token].is_open) return false;
    in_flight_[token] = {};
    free_tokens_.push_back(token);
  }
  return true;
}

// Wakes a peer that sleeps, once for each sleep. The fence orders what was published before the
// look at `sleeps`, as the one in FallAsleep orders the announcement before the look for work. So
// either this end sees that the peer sleeps, or the peer sees the frame.
void ShmChannel::WakePeer() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t sleeps = peer().sleeps.load(std::memory_order_relaxed);
  if (sleeps % 2 == 0 || woken_from_.exchange(sleeps, std::memory_order_relaxed) == sleeps) return;
  const ShmPacket wake = ShmPacket::kWake;
  // Where the socket takes no packet, it is full of packets that wake the peer as well; if the peer
  // is gone, its end of the socket says so. Cleared, so that the next frame tries again.
  if (!SendPacket(socket(), BytesOf(wake))) woken_from_.store(0, std::memory_order_relaxed);
}

void ShmChannel::SayClosing() {
  MutexLock lock(&release_mu_);
  if (is_closing_) return;
  is_closing_ = true;
  const ShmPacket closing = ShmPacket::kClosing;
  (void)SendPacket(socket(), BytesOf(closing));
  // While payloads are lent, Release does it with the last one.
  if (lent_ == 0) SayDone();
}

// In memory, and not by the end of the socket, which can be ended from outside.
void ShmChannel::SayDone() {
  own().is_done.store(1, std::memory_order_release);
  shutdown(socket(), SHUT_WR);
}

bool ShmChannel::PeerMayRead() {
  if (peer().is_done.load(std::memory_order_acquire) != 0) return false;
  MutexLock lock(&send_mu_);
  return ReapLocked() && reaped_ != published_ && PeerLives(socket());
}

// ---- Receiving

ShmFrame ShmChannel::ReadFrame(uint64_t number) const {
  // Each word is read once, into a copy that the peer cannot change after it was checked.
  const ShmFrameWords& slot = peer().frames[number % kShmSlots];
  std::array<uint64_t, std::tuple_size_v<ShmFrameWords>> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = slot[i].load(std::memory_order_relaxed);
  ShmFrame entry;
  std::memcpy(&entry, words.data(), sizeof(entry));
  return entry;
}

ShmChannel::ReceiveResult ShmChannel::Receive(Frame* frame) {
  const uint64_t published = peer().published.load(std::memory_order_acquire);
  if (published == received_) return ReceiveResult::kNothing;
  if (published - received_ > kShmSlots) return ReceiveResult::kBroken;
  const ShmFrame entry = ReadFrame(received_);
  const uint32_t token = entry.token;
  if (token >= kShmSlots) return ReceiveResult::kBroken;
  if (entry.bytes > 0) {
    if (entry.segment >= segments_.size()) return ReceiveResult::kNeedsSegment;
    const size_t size = segments_[entry.segment]->size();
    if (entry.offset > size || entry.bytes > size - entry.offset ||
        entry.offset % kShmAlignment != 0) {
      return ReceiveResult::kBroken;
    }
  }
  // The frame is taken from here on, and its token released on every way out. Before this, nothing
  // has changed: a frame whose segment is not there yet is read again.
  ++received_;
  bool lends_more;
  {
    MutexLock lock(&release_mu_);
    lends_more = ++lent_ <= kMaxLent;
  }
  const absl::StatusOr<FrameHeader> header = DecodeHeader(entry.header);
  if (!header.ok() || header->payload_bytes != entry.bytes) {
    Release(token);
    return ReceiveResult::kMalformed;
  }
  frame->header = *header;
  frame->payload = Buffer();
  frame->is_of_host = true;
  frame->is_lent = entry.bytes > 0;
  if (entry.bytes == 0) {
    Release(token);
    return ReceiveResult::kFrame;
  }
  const std::shared_ptr<SharedMemory>& segment = segments_[entry.segment];
  frame->payload =
      Buffer::Wrap({segment->data() + entry.offset, entry.bytes},
                   [self = shared_from_this(), segment, token] { self->Release(token); });
  // More than kMaxLent are copied and released at once. So slots are left for the frames without
  // which the holders of lent ones would never give them back.
  if (!lends_more) Own(frame);
  return ReceiveResult::kFrame;
}

void ShmChannel::Release(uint32_t token) {
  MutexLock lock(&release_mu_);
  // Releases are counted in the order of their slots, so the token is written before the count
  // publishes it. The fence orders the release before the look at wants_releases (Send has its
  // counterpart).
  own().tokens[released_ % kShmSlots].store(token, std::memory_order_relaxed);
  own().released.store(++released_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (peer().wants_releases.load(std::memory_order_relaxed) != 0) WakePeer();
  if (--lent_ == 0 && is_closing_) SayDone();
}

absl::Status ShmChannel::AddSegment(const ShmSegment& segment, FileDescriptor fd) {
  if (segment.index != segments_.size() || segment.index >= kMaxSegments || segment.bytes == 0 ||
      segment.bytes > kMaxSegmentBytes) {
    return InvalidArgument("segment %d of %d bytes", segment.index, segment.bytes);
  }
  BDN_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory,
                       SharedMemory::MapPeers(std::move(fd), segment.bytes));
  segments_.push_back(std::move(memory));
  return absl::OkStatus();
}

// ---- Sleeping

// Announces the sleep. A peer that publishes after the fence sees it; a frame published before is
// seen by HasWork.
void ShmChannel::FallAsleep() {
  own().sleeps.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// No fence: a peer that sees this late sends a wake too many, which costs a packet.
void ShmChannel::WakeUp() { own().sleeps.fetch_add(1, std::memory_order_relaxed); }

bool ShmChannel::HasWork() const {
  if (peer().published.load(std::memory_order_acquire) != received_) return true;
  // Releases are work only for an end whose frames wait for them.
  if (own().wants_releases.load(std::memory_order_relaxed) == 0) return false;
  MutexLock lock(&send_mu_);
  return peer().released.load(std::memory_order_acquire) != reaped_;
}

}  // namespace bdn
