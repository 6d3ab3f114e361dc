#ifndef BANDONEON_TESTS_TRANSPORT_PIPE_TRANSPORT_H_
#define BANDONEON_TESTS_TRANSPORT_PIPE_TRANSPORT_H_

#include "common/transport/transport.h"
#include "common/transport/transport_options.h"

namespace bdn {

// Makes an open network over Unix sockets, the least of a transport, for tests. "pipe://NAME"
// is an abstract name; `around` is not used; a connection that breaks is gone at both ends.
absl::StatusOr<std::unique_ptr<Transport>> MakePipeTransport(std::unique_ptr<Transport>* around,
                                                             const TransportOptions& options);

}  // namespace bdn

#endif  // BANDONEON_TESTS_TRANSPORT_PIPE_TRANSPORT_H_
