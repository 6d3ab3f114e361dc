#ifndef BANDONEON_COMMON_TRANSPORT_AUTO_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_AUTO_TRANSPORT_H_

#include <memory>
#include <string>

#include "common/transport/shm/shm_transport.h"
#include "common/transport/transport.h"

namespace bdn {

// `host` to processes of this user on this host, `network` to all others. It listens with both, the
// one at a name that nobody can guess, and connects with `host` where the peer has an endpoint of shared memory
// at which somebody is there, else with `network`; the log says why. Connections do not change over, but who
// connects again where `host` never came through gets the network. With `always_host` nobody does: a
// Listen or Connect without `host` fails. Of `socket_directory` see NewShmAddress.
std::unique_ptr<Transport> MakeAutoTransport(std::unique_ptr<Transport> network,
                                             std::unique_ptr<ShmTransport> host,
                                             bool always_host = false,
                                             std::string socket_directory = "");

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_AUTO_TRANSPORT_H_
