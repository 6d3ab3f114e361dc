#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_TRANSPORT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/transport.h"

namespace bdn {

struct ZmqOptions {
  // Threads that move bytes. One connection lives on one of them, at 5 to 6 GB/s.
  int io_threads = 1;
  // How long Join may take to let out frames that were handed over before Close.
  absl::Duration linger = absl::Seconds(1);
  // Sending more ends in InvalidArgument; a peer that sends more loses its connection.
  uint64_t max_payload_bytes = kMaxPayloadBytes;
};

// ZeroMQ over "tcp://host:port" and "ipc:///path". Payloads are neither copied on the way out nor
// on the way in (a received payload sits wherever ZeroMQ put it: no alignment is promised). One
// thread polls, by blocking; it runs the frame handler, and it or an I/O thread runs each SendDone.
//
// Frames to a listener that is not there yet wait for it, and connections come back by themselves.
// Frames to a peer that connected to us and has gone end in Unavailable.
// InvalidArgument for options out of range; ResourceExhausted when the system has no more
// descriptors.
absl::StatusOr<std::unique_ptr<Transport>> MakeZmqTransport(const ZmqOptions& options = {});

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_TRANSPORT_H_
