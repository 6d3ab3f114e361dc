#ifndef BANDONEON_COMMON_TRANSPORT_LOOPBACK_H_
#define BANDONEON_COMMON_TRANSPORT_LOOPBACK_H_

#include <memory>
#include <thread>

#include "common/transport/loopback_core.h"
#include "common/transport/transport.h"

namespace bdn {

// A network in one process that delivers in order and without faults, on one thread of its own.
// Addresses are "loopback://name". Payloads are shared, never copied. Thread-safe; outlives its
// transports.
class LoopbackNetwork final {
 public:
  LoopbackNetwork();
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  std::unique_ptr<Transport> MakeTransport();

 private:
  LoopbackCore core_;
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_LOOPBACK_H_
