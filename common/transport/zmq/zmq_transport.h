#ifndef BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/transport/transport.h"

namespace bdn {

struct ZmqOptions {
  // Threads that move bytes. One connection lives on one of them, at 5 to 6 GB/s in the clear.
  int io_threads = 1;
  // How long Join may take to let out frames that were handed over before Close.
  absl::Duration linger = absl::Seconds(1);
  // Sending more ends in InvalidArgument; a peer that sends more, in one part or in many, loses its
  // connection.
  uint64_t max_payload_bytes = kMaxPayloadBytes;
  // The same of the first message of a connection to a listener, and of the parts of messages that have not
  // ended of all connections together that have brought none: nothing is known of who is at their other
  // ends, and ZeroMQ keeps 64 bytes for a part that takes 2 on the way.
  uint64_t max_first_bytes = kMaxPayloadBytes;
  uint64_t max_first_bytes_together = uint64_t{4} << 20;
  // What listeners ask for. Unset: encrypted, but on this machine alone (127.*, ::1, ipc)
  // authenticated.
  std::optional<LinkSecurity> security = std::nullopt;
  // A connection whose bytes nobody acknowledges for so long (heartbeats go every fifth of it) is
  // replaced, and after six times as long one that brings nothing. A peer that takes nothing for so
  // long while its queue is full is cut. 0 is for ever.
  absl::Duration silence_timeout = absl::Seconds(10);
  // A handshake that takes longer is given up.
  absl::Duration handshake_timeout = absl::Seconds(5);
  // To one peer of a listener. Frames beyond it end in ResourceExhausted.
  uint64_t max_bytes_queued = uint64_t{2} << 30;
  int max_frames_queued = 65536;
  // Sent together by connections of a listener on which no whole frame has come; then those that
  // sent most are cut. They may be anybody's.
  uint64_t max_newcomer_bytes = uint64_t{64} << 20;
  // Of a listener, together; then the oldest are cut.
  int max_newcomers = 4096;
  // Borrowed; null for one of its own.
  const Clock* clock = nullptr;
};

// ZeroMQ over "tcp://host:port" and "ipc:///path". Payloads are neither copied on the way out nor
// on the way in (a received payload sits wherever ZeroMQ put it: no alignment is promised), but by
// encryption. One thread polls, by blocking; it runs the frame handler, decides who may connect,
// and it or an I/O thread runs each SendDone.
//
// kEncrypted is ZeroMQ's CURVE, kAuthenticated its PLAIN: the user is the connector's public key, the
// password the admission's secret, both in Z85. Nothing of a peer is read before it is admitted.
//
// Frames to a listener that is not there yet wait for it, and connections come back by themselves.
// Frames to a peer that connected to us and has gone end in Unavailable. A message of more parts
// than a frame has ends its connection.
// InvalidArgument for options out of range; ResourceExhausted when the system has no more
// descriptors; Unimplemented where libzmq lacks what encryption takes.
absl::StatusOr<std::unique_ptr<Transport>> MakeZmqTransport(const ZmqOptions& options = {});

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_TRANSPORT_H_
