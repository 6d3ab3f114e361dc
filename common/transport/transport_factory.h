#ifndef BANDONEON_COMMON_TRANSPORT_TRANSPORT_FACTORY_H_
#define BANDONEON_COMMON_TRANSPORT_TRANSPORT_FACTORY_H_

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace bdn {

// A row of the table of transports: a scheme of endpoints, when a transport for it is made, and
// how.
struct TransportRow {
  std::string_view scheme;
  // Makes the transport. A network is made of the options alone; any other takes the transport
  // `around` which it is put, and leaves it to the caller when it returns an error.
  absl::StatusOr<std::unique_ptr<Transport>> (*make)(std::unique_ptr<Transport>* around,
                                                     const TransportOptions& options);
  // Whether the options ask for it. Null for a network, which is chosen by address.
  Use (*use)(const TransportOptions& options) = nullptr;
  // The beginning of the log line where the transport cannot be made and need not be, and of the
  // error where it must be.
  std::string_view instead = {};
  std::string_view setting = {};
};

// Makes a transport from the one table of those that there are: a network, chosen by `address`
// ("tcp" and "ipc" by ZeroMQ), and around it the others that the options ask for ("fabric" and
// "shm"). `address` is one to listen at, or its scheme alone. `more` has rows behind those of the
// table, for programs that have transports of their own. InvalidArgument names the schemes of
// networks that there are. (Loopback transports come from a network that their makers share:
// loopback.h.)
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view address,
                                                         const TransportOptions& options,
                                                         std::span<const TransportRow> more = {});

// Prepares the whole process for the transports that MakeTransport makes: for main(), once, before
// threads start.
void PrepareProcessForTransports();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_FACTORY_H_
