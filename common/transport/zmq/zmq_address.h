#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn {

// "tcp://host:port" or "ipc:///path".
struct ZmqAddress {
  bool is_ipc = false;
  std::string path;  // ipc: of the socket file
  bool is_ipv6 = false;
  // Whether only this machine can be at the other end: ipc, 127.* and ::1.
  bool is_local = false;
};

// InvalidArgument names the address and what is wrong with it.
absl::StatusOr<ZmqAddress> ParseZmqAddress(const std::string& address);

// Makes way for a listener at `path`: removes a socket file that nobody listens on. AlreadyExists
// when somebody does; InvalidArgument when the file is no socket, which is then left alone. (ZeroMQ
// by itself removes whatever is there and takes the address from its owner.)
absl::Status RemoveStaleSocketFile(const std::string& path);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_
