#ifndef BANDONEON_COMMON_TRANSPORT_AUTO_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_AUTO_TRANSPORT_H_

#include <memory>
#include <string>

#include "common/transport/shm/shm_transport.h"
#include "common/transport/transport.h"

namespace bdn {

// Returns a transport that uses `host` (shared memory) to processes of this user on this machine,
// and `network` to all others. It listens with both; the address of `host` is a name that nobody
// can guess. It connects with `host` where the peer has an endpoint of shared memory at which
// somebody listens, else with `network`, and the log says why. A connection does not change over;
// but if the connection over `host` to a peer never came up, the next Connect to that peer takes
// the network. With `always_host` the network is never taken: a Listen or Connect that cannot use
// `host` fails. NewShmAddress says what `socket_directory` is.
std::unique_ptr<Transport> MakeAutoTransport(std::unique_ptr<Transport> network,
                                             std::unique_ptr<ShmTransport> host,
                                             bool always_host = false,
                                             std::string socket_directory = "");

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_AUTO_TRANSPORT_H_
