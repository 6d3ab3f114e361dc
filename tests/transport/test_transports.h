#ifndef BANDONEON_TESTS_TRANSPORT_TEST_TRANSPORTS_H_
#define BANDONEON_TESTS_TRANSPORT_TEST_TRANSPORTS_H_

#include <vector>

#include "common/transport/transport_factory.h"
#include "tests/transport/pipe_transport.h"

namespace bdn {

// The transports that only tests have, as rows behind those of the product. Each is a network, and
// listens at SCHEME://PATH. A row here is trained over by tests/system/transport_job_test.py.
inline const std::vector<TransportRow> kTestTransports = {
    TransportRow{"pipe", MakePipeTransport},
};

}  // namespace bdn

#endif  // BANDONEON_TESTS_TRANSPORT_TEST_TRANSPORTS_H_
