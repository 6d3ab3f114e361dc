#ifndef BANDONEON_COMMON_TRANSPORT_THROTTLED_H_
#define BANDONEON_COMMON_TRANSPORT_THROTTLED_H_

#include <memory>

#include "common/base/clock.h"
#include "common/transport/transport.h"

namespace bdn {

// Returns `inner` behind a full-duplex link of `bytes_per_second` each way, which all its
// connections share; headers count. Frames leave in the order of Send and arrive in the order in
// which they came; SendDone follows the departure. Two throttled ends of one rate cost a frame its
// time on the wire once, not twice. A rate of 0 is no limit: `inner` itself comes back. `clock` is
// borrowed.
std::unique_ptr<Transport> MakeThrottled(std::unique_ptr<Transport> inner, double bytes_per_second,
                                         const Clock* clock);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_THROTTLED_H_
