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

// The options of a transport by ZeroMQ.
struct ZmqOptions {
  // Threads that move bytes. Each connection lives on one of them, which moves 5 to 6 GB/s
  // unencrypted.
  int io_threads = 1;
  // The time that Join may take to send frames that were handed over before Close.
  absl::Duration linger = absl::Seconds(1);
  // The longest payload. Sending a longer one ends in InvalidArgument; a peer that sends more, in
  // one part or in many, loses its connection.
  uint64_t max_payload_bytes = kMaxPayloadBytes;
  // The same limit for the first message of a connection to a listener, and a limit for the unended
  // messages of all connections together that have brought none. Nothing is known of the peers at
  // their other ends, and ZeroMQ keeps 64 bytes for a part that takes 2 on the wire.
  uint64_t max_first_bytes = kMaxPayloadBytes;
  uint64_t max_first_bytes_together = uint64_t{4} << 20;
  // The security of listeners. Unset: encrypted, but authenticated where they listen on this
  // machine alone (127.*, ::1, ipc).
  std::optional<LinkSecurity> security = std::nullopt;
  // A connection whose bytes are not acknowledged for so long (heartbeats are sent every fifth of
  // it) is replaced; so is one that brings nothing for six times as long. A peer that takes nothing
  // for so long while its queue is full is cut. 0 is for ever.
  absl::Duration silence_timeout = absl::Seconds(10);
  // The longest handshake; one that takes longer is given up.
  absl::Duration handshake_timeout = absl::Seconds(5);
  // The most that may wait to be sent to one peer of a listener. Frames beyond it end in
  // ResourceExhausted.
  uint64_t max_bytes_queued = uint64_t{2} << 30;
  int max_frames_queued = 65536;
  // The most bytes that connections of a listener on which no whole frame has come may have sent
  // together, as they may be anybody's; then those that sent most are cut.
  uint64_t max_newcomer_bytes = uint64_t{64} << 20;
  // The most such connections of a listener; then the oldest are cut.
  int max_newcomers = 4096;
  // Borrowed; null: a clock of its own.
  const Clock* clock = nullptr;
};

// Makes a transport by ZeroMQ over "tcp://host:port" and "ipc:///path". Payloads are copied neither
// on the way out nor on the way in, but for encryption (a received payload stays where ZeroMQ put
// it, so no alignment is promised). One thread polls, by blocking; it runs the frame handler and
// decides which connections are admitted. That thread or one of ZeroMQ's runs each SendDone.
//
// kEncrypted is ZeroMQ's CURVE, kAuthenticated its PLAIN: the user is the connector's public key,
// the password the admission's secret, both in Z85. No frame of a peer is read before it is
// admitted.
//
// Frames to a listener that is not there yet wait for it, and connections come back by themselves.
// Frames to a peer that connected to us and has gone end in Unavailable. A message of more parts
// than a frame has ends its connection.
//
// InvalidArgument for options out of range; ResourceExhausted when the system has no more
// descriptors; Unimplemented where libzmq lacks what encryption needs.
absl::StatusOr<std::unique_ptr<Transport>> MakeZmqTransport(const ZmqOptions& options = {});

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_ZMQ_ZMQ_TRANSPORT_H_
