#include "worker/host/host_address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr std::string_view kScheme = "unix:";
constexpr int kBacklog = 1024;

struct SocketAddress {
  sockaddr_un address = {};
  socklen_t size = 0;

  explicit SocketAddress(const HostAddress& at) {
    address.sun_family = AF_UNIX;
    std::copy(at.path.begin(), at.path.end(), address.sun_path);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + at.path.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

bool IsAbstract(const HostAddress& address) { return address.path[0] == '\0'; }

FileDescriptor OpenSocket() {
  return FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

absl::Status Failed(const char* call, const HostAddress& address) {
  const int error = errno;
  const bool is_full = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
  const std::string text = absl::StrFormat("%s: %s: %s", address.text, call, std::strerror(error));
  return is_full ? ResourceExhausted("%s", text) : InvalidArgument("%s", text);
}

// Returns whether the peer is a process of our user, as the kernel says: an abstract address has no
// file permissions.
bool IsOurUsers(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// Returns whether the file at this address is a socket of our user at which no process listens any
// more. A file of another kind or user is never removed.
bool IsLeftBehind(const HostAddress& address) {
  struct stat file = {};
  if (lstat(address.path.c_str(), &file) != 0 || !S_ISSOCK(file.st_mode)) return false;
  if (file.st_uid != geteuid()) return false;
  const FileDescriptor probe = OpenSocket();
  const SocketAddress to(address);
  return probe.is_open() && connect(probe.get(), to.get(), to.size) != 0 && errno == ECONNREFUSED;
}

}  // namespace

absl::StatusOr<HostAddress> ParseHostAddress(const std::string& text) {
  const size_t most = sizeof(sockaddr_un::sun_path) - 1;
  std::string_view rest = text;
  const bool has_scheme = rest.starts_with(kScheme);
  if (has_scheme) rest.remove_prefix(kScheme.size());
  const bool is_known = has_scheme && rest.size() > 1 && (rest[0] == '@' || rest[0] == '/');
  if (!is_known || rest.size() > most || rest.find('\0') != rest.npos) {
    return InvalidArgument(
        "address '%s': expected unix:@NAME or unix:/PATH, of at most %d characters", text, most);
  }
  HostAddress address{text, std::string(rest)};
  if (rest[0] == '@') address.path[0] = '\0';
  return address;
}

absl::StatusOr<HostListener> HostListener::ListenAt(const HostAddress& address) {
  FileDescriptor socket = OpenSocket();
  if (!socket.is_open()) return Failed("socket", address);
  if (!IsAbstract(address) && IsLeftBehind(address)) unlink(address.path.c_str());
  const SocketAddress at(address);
  const mode_t mask = umask(0177);  // from the first moment the file is for its user alone
  const int bound = bind(socket.get(), at.get(), at.size);
  umask(mask);
  if (bound != 0) {
    if (errno != EADDRINUSE) return Failed("bind", address);
    return AlreadyExists(
        "%s is in use: one daemon a host and job; end the other, or give this one an address of "
        "its own by attach",
        address.text);
  }
  HostListener listener(std::move(socket), IsAbstract(address) ? "" : address.path);
  if (listen(listener.fd(), kBacklog) != 0) return Failed("listen", address);
  return listener;
}

void HostListener::Close() {
  if (socket_.is_open() && !file_.empty()) unlink(file_.c_str());
  socket_ = FileDescriptor();
}

absl::StatusOr<FileDescriptor> HostListener::Accept() {
  FileDescriptor taken(accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!taken.is_open()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      return ResourceExhausted("accept: %s", std::strerror(errno));
    }
    return taken;
  }
  if (!IsOurUsers(taken.get())) return PermissionDenied("another user's process connected");
  return taken;
}

absl::StatusOr<FileDescriptor> ConnectToHost(const HostAddress& address) {
  FileDescriptor connector = OpenSocket();
  if (!connector.is_open()) return Failed("socket", address);
  const SocketAddress to(address);
  if (connect(connector.get(), to.get(), to.size) != 0) {
    if (errno == EACCES || errno == EPERM) {
      return PermissionDenied("%s is of another user's daemon: run both as one user", address.text);
    }
    return NotFound(
        "no daemon listens at %s on this host (%s): start `bandoneon-worker --attach %s`",
        address.text, std::strerror(errno), address.text);
  }
  // Checked by the process, too: another user could listen at an abstract address first, and get
  // the gradients.
  if (!IsOurUsers(connector.get())) {
    return PermissionDenied("%s is of another user's daemon: run both as one user", address.text);
  }
  return connector;
}

}  // namespace bdn
