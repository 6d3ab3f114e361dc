#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

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

// A descriptor that listens at the socket file `path`, which processes of this user alone (and root)
// can connect to from the moment it is there. Takes the place of a socket file that nobody listens
// on. AlreadyExists when somebody does; InvalidArgument when the file is no socket, which is then
// left alone, or none can be made there. (ZeroMQ by itself removes whatever is there, takes the
// address from its owner, and leaves the mode to the umask.)
absl::StatusOr<FileDescriptor> ListenAtSocketFile(const std::string& path);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_
