#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_descriptor.h"

namespace bdn {

// A parsed address: "tcp://host:port" or "ipc:///path".
struct ZmqAddress {
  bool is_ipc = false;
  std::string path;  // of the socket file, for ipc
  bool is_ipv6 = false;
  // Whether only processes of this machine can be at the other end: ipc, 127.* and ::1.
  bool is_local = false;
};

// Parses an address. InvalidArgument names it and says what is wrong with it.
absl::StatusOr<ZmqAddress> ParseZmqAddress(const std::string& address);

// Returns a descriptor that listens at the socket file `path`. Processes of this user alone (and
// root) can connect to it from the moment it is there. It replaces a socket file at which nobody
// listens. AlreadyExists when a process does; InvalidArgument when the file is no socket, which is
// then left alone, or none can be made there. (ZeroMQ by itself removes any file there, takes the
// address from its owner, and leaves the mode to the umask.)
absl::StatusOr<FileDescriptor> ListenAtSocketFile(const std::string& path);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_ADDRESS_H_
