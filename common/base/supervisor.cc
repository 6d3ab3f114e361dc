#include "common/base/supervisor.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/numbers.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// Returns a connected descriptor, or -1 with the reason in errno.
int Connect(const std::string& address) {
  sockaddr_un place = {};
  if (address.size() < 2 || (address[0] != '/' && address[0] != '@') ||
      address.size() >= sizeof(place.sun_path)) {
    errno = EAFNOSUPPORT;
    return -1;
  }
  place.sun_family = AF_UNIX;
  std::memcpy(place.sun_path, address.data(), address.size());
  socklen_t length = sizeof(place);
  if (address[0] == '@') {  // no file: the name is all bytes after a zero
    place.sun_path[0] = '\0';
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  }
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&place), length) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

Supervisor::Variables Supervisor::FromEnvironment() {
  return {ReadVariable("NOTIFY_SOCKET"), ReadVariable("WATCHDOG_USEC"),
          ReadVariable("WATCHDOG_PID")};
}

Supervisor::Supervisor(const Variables& variables) {
  if (variables.notify_socket.empty()) return;
  fd_ = Connect(variables.notify_socket);
  if (fd_ < 0) {
    LogWarning("cannot reach the supervisor at NOTIFY_SOCKET=%s: %s", variables.notify_socket,
               std::strerror(errno));
    return;
  }
  if (variables.watchdog_usec.empty()) return;
  int64_t pid = getpid();
  if (!variables.watchdog_pid.empty() && !absl::SimpleAtoi(variables.watchdog_pid, &pid)) pid = 0;
  if (pid != getpid()) return;  // the watchdog is for another process
  int64_t microseconds = 0;
  if (!absl::SimpleAtoi(variables.watchdog_usec, &microseconds) || microseconds < 2) {
    LogWarning("WATCHDOG_USEC is '%s': expected microseconds", variables.watchdog_usec);
    return;
  }
  alive_interval_ = absl::Microseconds(microseconds) / 2;
}

Supervisor::~Supervisor() {
  if (fd_ >= 0) close(fd_);
}

void Supervisor::Status(std::string_view text) const {
  // The text ends at a line break, which would begin a message of its own.
  Send(absl::StrFormat("STATUS=%s", std::string(text.substr(0, text.find('\n')))));
}

void Supervisor::Send(std::string_view message) const {
  // A message that is lost is one more missed sign of life, which the supervisor judges.
  if (fd_ >= 0) (void)!send(fd_, message.data(), message.size(), MSG_NOSIGNAL);
}

}  // namespace bdn
