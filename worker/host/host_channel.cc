#include "worker/host/host_channel.h"

#include <google/protobuf/message_lite.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "common/transport/shm/shm_layout.h"

namespace bdn {
namespace {

constexpr size_t kLengthBytes = 4;
// The longest message: a list of a million tensors has about this length.
constexpr uint32_t kMostMessageBytes = 256u << 20;
// A peer for which more bytes wait does not read, and is given up.
constexpr size_t kMostWaitingBytes = size_t{512} << 20;
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMostDescriptors = 16;
constexpr uint32_t kMostSegmentsOfPeer = 4096;

}  // namespace

int HostChannel::peer_pid() const {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return 0;
  return peer.pid;
}

// ---- Sending

void HostChannel::QueueLocked(const std::string& message, int fd) {
  std::string bytes(kLengthBytes, '\0');
  StoreLittle(MutableByteSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()), 0,
              static_cast<uint32_t>(message.size()));
  bytes += message;
  outgoing_bytes_ += bytes.size();
  outgoing_.push_back({std::move(bytes), fd});
}

bool HostChannel::Send(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  MutexLock lock(&mu_);
  if (is_broken_) return false;
  // Segments go before the message, which may name places in them. Under the same lock, so that no
  // other message comes between.
  for (;;) {
    const std::shared_ptr<SharedMemory> segment = arena_->segment(segments_told_);
    if (segment == nullptr) break;
    QueueLocked(encode_segment_(segments_told_, segment->size()), segment->fd());
    ++segments_told_;
  }
  QueueLocked(bytes, -1);
  return FlushLocked();
}

bool HostChannel::Flush() {
  MutexLock lock(&mu_);
  return FlushLocked();
}

bool HostChannel::has_waiting() const {
  MutexLock lock(&mu_);
  return !outgoing_.empty() && !is_broken_;
}

bool HostChannel::FlushLocked() {
  while (!is_broken_ && !outgoing_.empty()) {
    Outgoing& next = outgoing_.front();
    iovec bytes = {next.bytes.data() + next.sent, next.bytes.size() - next.sent};
    msghdr message = {};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
    if (next.fd >= 0 && next.sent == 0) {  // with its first byte
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &next.fd, sizeof(int));
    }
    const ssize_t sent = sendmsg(socket(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    // The socket takes no more now; the polling thread calls Flush when it does.
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (sent < 0) {
      is_broken_ = true;
      break;
    }
    next.sent += static_cast<size_t>(sent);
    outgoing_bytes_ -= static_cast<size_t>(sent);
    if (next.sent == next.bytes.size()) outgoing_.pop_front();
  }
  // Memory must not grow without a limit for a peer that has stopped to read.
  if (outgoing_bytes_ > kMostWaitingBytes) is_broken_ = true;
  return !is_broken_;
}

std::optional<HostPlace> HostChannel::Find(ByteSpan bytes) const {
  const std::optional<ShmArena::Place> place = arena_->Find(bytes);
  if (!place.has_value()) return std::nullopt;
  return HostPlace{place->segment, place->offset, bytes.size()};
}

// ---- Receiving

absl::Status HostChannel::Fill() {
  for (;;) {
    const size_t had = received_.size();
    received_.resize(had + kReadBytes);
    iovec bytes = {received_.data() + had, kReadBytes};
    msghdr message = {};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control = {};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    // Before any return: no byte that was not received may stay.
    received_.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return absl::OkStatus();
    if (got <= 0) return Unavailable("the connection has ended");
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        descriptors_.emplace_back(fd);
      }
    }
    // Descriptors are a scarce resource of this process, which a peer could use up.
    if (descriptors_.size() > kMostDescriptors || (message.msg_flags & MSG_CTRUNC) != 0) {
      return InvalidArgument("it sent more descriptors than segments");
    }
    return absl::OkStatus();
  }
}

absl::StatusOr<std::optional<std::string>> HostChannel::Receive() {
  for (bool has_filled = false;;) {
    const size_t here = received_.size() - taken_;
    if (here >= kLengthBytes) {
      const auto length = LoadLittle<uint32_t>(
          ByteSpan(reinterpret_cast<const std::byte*>(received_.data()) + taken_, kLengthBytes), 0);
      if (length > kMostMessageBytes) {
        return InvalidArgument("a message of %d bytes is over %d", length, kMostMessageBytes);
      }
      if (here - kLengthBytes >= length) {
        std::optional<std::string> message = received_.substr(taken_ + kLengthBytes, length);
        taken_ += kLengthBytes + length;
        return message;
      }
    }
    if (has_filled) return std::nullopt;
    // Once for each read, and not for each message, which would move the rest each time.
    received_.erase(0, taken_);
    taken_ = 0;
    BDN_RETURN_IF_ERROR(Fill());
    has_filled = true;
  }
}

absl::Status HostChannel::AddSegment(uint32_t index, uint64_t bytes) {
  if (descriptors_.empty()) return InvalidArgument("segment %d came without a descriptor", index);
  FileDescriptor fd = std::move(descriptors_.front());
  descriptors_.pop_front();
  MutexLock lock(&segments_mu_);
  // Segments come in order, and their number is limited, as each takes address space here.
  if (index != segments_.size() || index >= kMostSegmentsOfPeer) {
    return InvalidArgument("segment %d where %d was the next", index, segments_.size());
  }
  BDN_ASSIGN_OR_RETURN(auto memory, SharedMemory::MapPeers(std::move(fd), bytes));
  segments_.push_back(std::move(memory));
  return absl::OkStatus();
}

absl::StatusOr<HostChannel::Bytes> HostChannel::Resolve(const HostPlace& place,
                                                        uint64_t bytes) const {
  if (place.bytes != bytes) {
    return InvalidArgument("a place of %d bytes, for %d", place.bytes, bytes);
  }
  MutexLock lock(&segments_mu_);
  if (place.segment >= segments_.size()) {
    return InvalidArgument("a place in segment %d, of %d", place.segment, segments_.size());
  }
  const std::shared_ptr<SharedMemory>& memory = segments_[place.segment];
  // Written without an addition that could overflow: the numbers come from the peer.
  if (place.offset % kShmAlignment != 0 || place.offset > memory->size() ||
      bytes > memory->size() - place.offset) {
    return InvalidArgument("a place of %d bytes at %d, in a segment of %d", bytes, place.offset,
                           memory->size());
  }
  return Bytes{{memory->data() + place.offset, bytes}, memory};
}

}  // namespace bdn
