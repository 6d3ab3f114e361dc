#include "cli/tcp_probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace bdn::cli {
namespace {

Reached ReachedBy(int error) {
  switch (error) {
    case 0:
      return Reached::kYes;
    case ECONNREFUSED:
    // Some firewalls and proxies reset a connection in place of a refusal.
    case ECONNRESET:
      return Reached::kRefused;
    case ETIMEDOUT:
      return Reached::kNoAnswer;
    default:
      return Reached::kUnreachable;
  }
}

}  // namespace

absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& address, bool may_be_0) {
  std::string text = address;
  if (const size_t scheme = text.find("://"); scheme != std::string::npos) {
    text = text.substr(scheme + 3);
  }
  const size_t colon = text.rfind(':');
  int port = -1;
  HostAndPort place;
  if (colon != std::string::npos) {
    place = {text.substr(0, colon), text.substr(colon + 1)};
    if (!absl::SimpleAtoi(place.port, &port)) port = -1;
  }
  if (place.host.size() > 2 && place.host.front() == '[' && place.host.back() == ']') {
    place.host = place.host.substr(1, place.host.size() - 2);
  }
  if (place.host.empty() || port < (may_be_0 ? 0 : 1) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' is no address: expected host:port, e.g. 10.0.0.1:7000", address));
  }
  return place;
}

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST] = "";
  if (getnameinfo(get(), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const HostAndPort& place) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: %s", place.host, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

TcpAttempt ConnectTcp(const SocketAddress& address, std::chrono::milliseconds timeout) {
  TcpAttempt attempt;
  const auto begun = std::chrono::steady_clock::now();
  const int fd =
      socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  int error = fd < 0 ? errno : 0;
  if (fd >= 0 && connect(fd, address.get(), address.size) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd polled = {fd, POLLOUT, 0};
    socklen_t size = sizeof(error);
    // The kernel's own timeout is minutes.
    if (poll(&polled, 1, static_cast<int>(timeout.count())) == 0) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
  attempt.milliseconds = took.count();
  attempt.reached = ReachedBy(error);
  if (error != 0) {
    attempt.why = strerror(error);
    if (fd >= 0) close(fd);
    return attempt;
  }
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  attempt.fd = fd;
  return attempt;
}

absl::StatusOr<std::string> LocalAddressTowards(const SocketAddress& address) {
  // The connect of a datagram socket sends nothing: it only looks for the route.
  const int fd = socket(address.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  SocketAddress own;
  own.size = sizeof(own.storage);
  const bool found = fd >= 0 && connect(fd, address.get(), address.size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (found) return own.ToString();
  return absl::UnavailableError(
      absl::StrFormat("no route to %s: %s", address.ToString(), strerror(error)));
}

}  // namespace bdn::cli
