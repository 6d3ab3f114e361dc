#ifndef BANDONEON_COMMON_TRANSPORT_TRANSPORT_FACTORY_H_
#define BANDONEON_COMMON_TRANSPORT_TRANSPORT_FACTORY_H_

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace bdn {

// The one place that knows which transports there are: a network's, "tcp" and "ipc" by ZeroMQ, and around it
// those that the options ask for, "fabric" and "shm".
// `address` is one of them or its scheme alone. InvalidArgument names the schemes there are.
// (Loopback transports come from a network that their makers share: loopback.h.)
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view address,
                                                         const TransportOptions& options);

// Prepares the whole process for the transports that MakeTransport makes: for main(), once, before
// threads start.
void PrepareProcessForTransports();

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_FACTORY_H_
