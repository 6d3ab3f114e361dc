#include "common/cluster/listen_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// Splits "host:port" or "[::1]:port".
bool Split(const std::string& address, std::string* host, std::string* port) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  *host = address.substr(0, colon);
  *port = address.substr(colon + 1);
  if (host->front() == '[' && host->back() == ']') *host = host->substr(1, host->size() - 2);
  return !host->empty();
}

// Returns the host of "host:port" or "tcp://host:port"; nothing where the address names none.
std::string HostOf(std::string_view address) {
  constexpr std::string_view kTcp = "tcp://";
  if (address.substr(0, kTcp.size()) == kTcp) address.remove_prefix(kTcp.size());
  std::string host;
  std::string port;
  return Split(std::string(address), &host, &port) ? host : std::string();
}

bool HasOtherScheme(std::string_view address) {
  const size_t scheme = address.find("://");
  return scheme != std::string_view::npos && address.substr(0, scheme) != "tcp";
}

}  // namespace

absl::Status CheckAddress(const std::string& address) {
  std::string host;
  std::string port;
  int number = 0;
  if (!Split(address, &host, &port) || !absl::SimpleAtoi(port, &number) || number < 0 ||
      number > 65535) {
    return InvalidArgument("address '%s': expected host:port, such as 127.0.0.1:7000", address);
  }
  return absl::OkStatus();
}

absl::Status CheckOptionalAddress(const std::string& setting, const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  const absl::Status status = CheckAddress(address);
  return status.ok() ? status : Annotate(status, "setting " + setting);
}

bool IsLocalAddress(std::string_view address) {
  if (HasOtherScheme(address)) return true;  // ipc, or inside the process
  const std::string host = HostOf(address);
  in_addr v4 = {};
  in6_addr v6 = {};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) != 0;
  return host == "localhost";
}

bool IsWildcardAddress(std::string_view address) {
  if (HasOtherScheme(address)) return false;
  const std::string host = HostOf(address);
  in_addr v4 = {};
  in6_addr v6 = {};
  // Read as the system does, for which "0" is an address, too.
  if (inet_aton(host.c_str(), &v4) != 0) return v4.s_addr == INADDR_ANY;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_UNSPECIFIED(&v6) != 0;
  return host == "*";
}

absl::StatusOr<int> OpenListeningSocket(const std::string& address) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  std::string host;
  std::string port;
  Split(address, &host, &port);
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return InvalidArgument("cannot listen at %s: %s", address, gai_strerror(error));
  }
  // A name may have several addresses: the first is taken.
  const int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                        found->ai_protocol);
  bool listens = false;
  if (fd >= 0) {
    const int on = 1;
    // A daemon that starts again must not wait until the connections of the last one have timed
    // out.
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    listens = bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
  }
  const int error = errno;
  freeaddrinfo(found);
  if (listens) return fd;
  if (fd >= 0) close(fd);
  return Unavailable("cannot listen at %s: %s", address, std::strerror(error));
}

absl::Status ListenError(const std::string& address) {
  const absl::StatusOr<int> fd = OpenListeningSocket(address);
  if (!fd.ok()) return fd.status();
  close(*fd);
  // The library failed, but the address was free a moment later: no more is known.
  return Unavailable("cannot listen at %s: the address was refused", address);
}

}  // namespace bdn
