#ifndef BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_
#define BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn {

// Returns InvalidArgument where `address` is not host:port with a port of 0 to 65535.
absl::Status CheckAddress(const std::string& address);

// Checks a setting that may be empty; the error names it.
absl::Status CheckOptionalAddress(const std::string& setting, const std::string& address);

// Returns whether no other machine can reach the address, which is host:port or a transport's
// ("tcp://host:port", "ipc://path"). Names are not looked up: of names only "localhost" is local.
bool IsLocalAddress(std::string_view address);
// Returns whether the address stands for every address of this machine (0.0.0.0, [::], *), so that
// it is none to connect to.
bool IsWildcardAddress(std::string_view address);
// Returns a non-blocking socket that listens for TCP connections at the address; the caller closes
// it. Unavailable gives the reason in the system's words ("Address already in use");
// InvalidArgument says that there is no such address.
absl::StatusOr<int> OpenListeningSocket(const std::string& address);

// Returns the reason why `address` cannot be listened at just now, in the system's words ("Address
// already in use"): for libraries that say only that they failed. Never OK.
absl::Status ListenError(const std::string& address);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_
