#include "common/transport/shm/shm_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kScheme = "shm://";
constexpr int kBacklog = 1024;

struct Address {
  sockaddr_un address = {};
  socklen_t size = 0;
};

Address AddressOf(const std::string& name) {
  Address to;
  to.address.sun_family = AF_UNIX;
  // The first byte is zero: no path, but a name.
  std::copy(name.begin(), name.end(), to.address.sun_path + 1);
  to.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return to;
}

FileDescriptor OpenSocket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool IsOurUsers(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

absl::Status NoDescriptor(const char* call) {
  return ResourceExhausted("%s: %s", call, std::strerror(errno));
}

}  // namespace

absl::StatusOr<std::string> ParseShmAddress(const std::string& address) {
  std::string_view name = address;
  const size_t most = sizeof(sockaddr_un::sun_path) - 1;
  if (!name.starts_with(kScheme) || name.size() == kScheme.size() ||
      name.size() - kScheme.size() > most) {
    return InvalidArgument("address '%s': expected shm://NAME, of at most %d characters", address,
                           most);
  }
  name.remove_prefix(kScheme.size());
  return std::string(name);
}

absl::StatusOr<FileDescriptor> ListenAt(const std::string& name) {
  FileDescriptor listener = OpenSocket();
  if (!listener.is_open()) return NoDescriptor("socket");
  const Address at = AddressOf(name);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0) {
    if (errno == EADDRINUSE) return AlreadyExists("shm://%s: the address is in use", name);
    return InvalidArgument("listen at shm://%s: %s", name, std::strerror(errno));
  }
  if (listen(listener.get(), kBacklog) != 0) {
    return InvalidArgument("listen at shm://%s: %s", name, std::strerror(errno));
  }
  return listener;
}

absl::StatusOr<FileDescriptor> ConnectTo(const std::string& name) {
  FileDescriptor connector = OpenSocket();
  if (!connector.is_open()) return NoDescriptor("socket");
  const Address to = AddressOf(name);
  if (connect(connector.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0) {
    if (errno == EAGAIN) return Unavailable("shm://%s takes no connection now", name);
    return NotFound("nobody listens at shm://%s on this host: %s", name, std::strerror(errno));
  }
  if (!IsOurUsers(connector.get())) {
    return PermissionDenied("shm://%s is of another user's process", name);
  }
  return connector;
}

absl::StatusOr<FileDescriptor> AcceptFrom(int listener) {
  FileDescriptor taken(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!taken.is_open()) {
    const bool is_none = errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED;
    if (!is_none && errno != EINTR) return NoDescriptor("accept");
    return taken;
  }
  if (!IsOurUsers(taken.get())) return PermissionDenied("another user's process connected");
  return taken;
}

bool SendPacket(int socket, ByteSpan packet, int fd) {
  iovec bytes = {const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(packet.size());
}

Packet ReceivePacket(int socket) {
  Packet packet;
  iovec bytes = {packet.bytes.data(), packet.bytes.size()};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  // Where more descriptors come than have room here, the kernel drops the others.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size;
  do {
    size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  } while (size < 0 && errno == EINTR);
  const bool is_nothing = size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (is_nothing) return packet;
  packet.result = size > 0 ? Packet::Result::kPacket : Packet::Result::kEnd;
  packet.size = size > 0 ? static_cast<size_t>(size) : 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
      FileDescriptor received(fd);
      if (!packet.fd.is_open()) packet.fd = std::move(received);
    }
  }
  return packet;
}

}  // namespace bdn
