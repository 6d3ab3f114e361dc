#ifndef BANDONEON_CLI_TCP_PROBE_H_
#define BANDONEON_CLI_TCP_PROBE_H_

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

// Functions that tell whether a TCP connection can be made, and why not.

namespace bdn::cli {

// A name or address with a port.
struct HostAndPort {
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
};
// Parses "host:port", "[::1]:port" or "tcp://host:port". InvalidArgument where the port is not from
// 1 to 65535 (or 0, where `may_be_0`), or the host is empty.
absl::StatusOr<HostAndPort> ParseHostAndPort(const std::string& address, bool may_be_0 = false);

// An address as the socket calls take it.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string ToString() const;  // "10.0.0.1", without the port
};
// Returns the addresses of a name. Blocks as long as the system's resolver does. NotFound in the
// resolver's words.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const HostAndPort& place);

// The outcome of an attempt to connect.
enum class Reached {
  kYes,
  kRefused,      // the machine is there, and nothing listens
  kNoAnswer,     // a firewall drops it, or the machine is off
  kUnreachable,  // no route, or the network says so
};
// An attempt to connect.
struct TcpAttempt {
  Reached reached = Reached::kNoAnswer;
  std::string why;  // in the system's words, where it was not reached
  double milliseconds = 0;
  int fd = -1;  // blocking, to be closed by the caller; -1 where it was not reached
};
// Connects, and waits for `timeout` at most.
TcpAttempt ConnectTcp(const SocketAddress& address, std::chrono::milliseconds timeout);

// Returns the address of this machine from which `address` is reached. Unavailable where it cannot
// be.
absl::StatusOr<std::string> LocalAddressTowards(const SocketAddress& address);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_TCP_PROBE_H_
