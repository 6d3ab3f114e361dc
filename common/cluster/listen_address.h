#ifndef BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_
#define BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn {

// InvalidArgument where `address` is not host:port with a port of 0 to 65535.
absl::Status CheckAddress(const std::string& address);

// The same of a setting that may be empty, which the error names.
absl::Status CheckOptionalAddress(const std::string& setting, const std::string& address);

// Of host:port or of a transport's address ("tcp://host:port", "ipc://path"): whether nobody on
// another host can reach it. A host's name is not looked up: only "localhost" is one of this host.
bool IsLocalAddress(std::string_view address);
// Whether it stands for every address of this host (0.0.0.0, [::], *), and so is none to connect
// to.
bool IsWildcardAddress(std::string_view address);
// A socket that listens for TCP connections there, non-blocking; the caller closes it. Unavailable
// says why not in the system's words ("Address already in use"), InvalidArgument that there is no
// such address.
absl::StatusOr<int> OpenListeningSocket(const std::string& address);

// Why nobody can listen at `address` just now, in the system's words ("Address already in use"):
// for libraries that only say that they could not. Never OK.
absl::Status ListenError(const std::string& address);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_LISTEN_ADDRESS_H_
