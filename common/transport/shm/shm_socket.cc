#include "common/transport/shm/shm_socket.h"

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "common/base/secret.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kScheme = "shm://";
constexpr std::string_view kPrefix = "bandoneon-";  // of the names that NewShmAddress makes
// The ending of a file's name before its socket listens.
constexpr char kUnfinished[] = ".new";
constexpr int kBacklog = 1024;
constexpr size_t kMostNameBytes = sizeof(sockaddr_un::sun_path) - 1;

struct Address {
  sockaddr_un address = {};
  socklen_t size = 0;
};

bool IsFile(const std::string& name) { return name[0] == '/'; }

Address AddressOf(const std::string& name) {
  Address to;
  to.address.sun_family = AF_UNIX;
  // Linux takes a path with a first byte of zero as a name of the abstract kind.
  std::copy(name.begin(), name.end(), to.address.sun_path + (IsFile(name) ? 0 : 1));
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

// Returns whether a directory is of our user, and no other user may so much as enter it.
bool IsPrivate(const std::string& directory) {
  struct stat found = {};
  return stat(directory.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == geteuid() && (found.st_mode & 077) == 0;
}

absl::Status NoDescriptor(const char* call) {
  return ResourceExhausted("%s: %s", call, std::strerror(errno));
}

// Removes the files of listeners that are gone, as a killed process removes none. Such a file
// refuses connections; any other error says nothing about its listener, and leaves the file.
void RemoveWhatIsLeftIn(const std::string& directory) {
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    const std::string_view file = entry->d_name;
    if (!file.starts_with(kPrefix) || file.ends_with(kUnfinished)) continue;
    const std::string name = absl::StrFormat("%s/%s", directory, entry->d_name);
    if (name.size() > kMostNameBytes) continue;
    const FileDescriptor probe = OpenSocket();
    const Address to = AddressOf(name);
    const bool is_left =
        probe.is_open() &&
        connect(probe.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0 &&
        errno == ECONNREFUSED;
    if (is_left) unlink(name.c_str());
  }
  closedir(entries);
}

}  // namespace

absl::StatusOr<std::string> ParseShmAddress(const std::string& address) {
  std::string_view name = address;
  if (!name.starts_with(kScheme) || name.size() == kScheme.size() ||
      name.size() - kScheme.size() > kMostNameBytes || name.find('\0') != name.npos) {
    return InvalidArgument("address '%s': expected shm://NAME, of at most %d characters", address,
                           kMostNameBytes);
  }
  name.remove_prefix(kScheme.size());
  return std::string(name);
}

ShmListeningSocket::~ShmListeningSocket() {
  if (!file_.empty()) unlink(file_.c_str());
}

// The socket is bound under another name, and the file gets its own only once the socket listens.
// Otherwise a process that finds the file in between would see that nobody listens, and remove it.
absl::StatusOr<ShmListeningSocket> ListenAt(const std::string& name) {
  FileDescriptor listener = OpenSocket();
  if (!listener.is_open()) return NoDescriptor("socket");
  const std::string bound = IsFile(name) ? name + kUnfinished : name;
  if (bound.size() > kMostNameBytes) {
    return InvalidArgument("listen at shm://%s: a path of at most %d characters", name,
                           kMostNameBytes - (bound.size() - name.size()));
  }
  const Address at = AddressOf(bound);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0) {
    if (errno == EADDRINUSE) return AlreadyExists("shm://%s: the address is in use", name);
    return InvalidArgument("listen at shm://%s: %s", name, std::strerror(errno));
  }
  absl::Status status;
  if (listen(listener.get(), kBacklog) != 0) {
    status = InvalidArgument("listen at shm://%s: %s", name, std::strerror(errno));
    // A link is refused where the file exists; rename would replace it.
  } else if (IsFile(name) && link(bound.c_str(), name.c_str()) != 0) {
    status = errno == EEXIST
                 ? AlreadyExists("shm://%s: the address is in use", name)
                 : InvalidArgument("listen at shm://%s: %s", name, std::strerror(errno));
  }
  if (IsFile(name)) unlink(bound.c_str());
  BDN_RETURN_IF_ERROR(status);
  return ShmListeningSocket(std::move(listener), IsFile(name) ? name : "");
}

std::string NewShmAddress(const std::string& directory) {
  const std::string name = std::string(kPrefix) + absl::BytesToHexString(RandomSecret());
  const std::string path = absl::StrFormat("%s/%s", directory, name);
  const bool is_of_file = IsFile(path) && !directory.empty() && IsPrivate(directory) &&
                          path.size() + sizeof(kUnfinished) <= kMostNameBytes;
  if (!is_of_file) return std::string(kScheme) + name;
  RemoveWhatIsLeftIn(directory);
  return std::string(kScheme) + path;
}

absl::StatusOr<FileDescriptor> ConnectTo(const std::string& name) {
  FileDescriptor connector = OpenSocket();
  if (!connector.is_open()) return NoDescriptor("socket");
  const Address to = AddressOf(name);
  if (connect(connector.get(), reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0) {
    // The listener's backlog is full.
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
    // The connection may have been given up before it was accepted: then there is none, which is no
    // error.
    const bool is_none = errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED;
    if (!is_none && errno != EINTR) return NoDescriptor("accept");
    return taken;
  }
  if (!IsOurUsers(taken.get())) return PermissionDenied("another user's process connected");
  return taken;
}

bool PeerLives(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  FileDescriptor process;
  if (peer.pid > 0) {
    process = FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!process.is_open() && errno == ESRCH) return false;
  }
  pollfd ends = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  if (process.is_open()) ends = {.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&ends, 1, 0) == 0;
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
  // The kernel drops descriptors that have no room here, so a peer cannot use ours up.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size;
  do {
    // With MSG_TRUNC the size is that of the packet, also where it is longer than `bytes`.
    size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | MSG_TRUNC);
  } while (size < 0 && errno == EINTR);
  const bool is_nothing = size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (is_nothing) return packet;
  // A packet of no bytes counts as the end: no end of ours sends one.
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
      // Each is owned at once, so that those beyond the first are closed.
      if (!packet.fd.is_open()) packet.fd = std::move(received);
    }
  }
  return packet;
}

}  // namespace bdn
