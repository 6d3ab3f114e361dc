#ifndef BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_
#define BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"

namespace bdn {

// InvalidArgument where `address` is not host:port with a port of 0 to 65535.
absl::Status CheckAddress(const std::string& address);

// Why nobody can listen at `address` just now, in the system's words ("Address already in use"):
// for libraries that only say that they could not. Never OK.
absl::Status ListenError(const std::string& address);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_
