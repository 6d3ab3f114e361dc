#ifndef BANDONEON_COMMON_TRANSPORT_SHM_SHM_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_SHM_SHM_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/transport/transport.h"

namespace bdn {

inline constexpr std::string_view kShmScheme = "shm";

// The options of a transport over shared memory.
struct ShmOptions {
  // kOpen, or kAuthenticated: listeners then ask for the secret and a CURVE key that is admitted.
  // In either case both ends are processes of one user.
  LinkSecurity security = LinkSecurity::kAuthenticated;
  // The CURVE key that connectors show. Not empty where listeners ask for one.
  PublicKey key;
  // The longest payload. Sending a longer one ends in InvalidArgument; a peer that sends one loses
  // its connection.
  uint64_t max_payload_bytes = kMaxPayloadBytes;
  // The most that may wait to be sent to one peer of a listener. Frames beyond it end in
  // ResourceExhausted.
  uint64_t max_bytes_queued = uint64_t{2} << 30;
  int max_frames_queued = 65536;
  absl::Duration handshake_timeout = absl::Seconds(5);
  int max_newcomers = 4096;      // connections in their handshake; then the oldest is ended
  const Clock* clock = nullptr;  // borrowed; null: a clock of its own
};

// A transport by shared memory between the processes of one user on one machine, at "shm://name".
// Frames are read in memory of their sender (Frame::is_lent). A payload that lies in this memory
// already, aligned to 8 bytes, is not copied. Another one is copied into it, once for all peers, or
// at each Send if it has less than 4096 bytes. memory() lends this memory from the first connection
// on, and blocks of the heap before that and where no more memory can be shared. One thread polls,
// by blocking. A peer that dies, stops, or writes whatever it likes costs its own connection alone.
// Thread-safe.
//
// SendDone says that a frame was handed over; its payload is shared until the peer has read it.
// Connections come back by themselves; frames not yet read by then are lost.
class ShmTransport : public Transport {
 public:
  // Makes a transport. InvalidArgument: options are out of range; ResourceExhausted: no descriptors
  // are left.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Make(const ShmOptions& options);

  // Connects as Connect does if a process of this user listens there now; else returns why not.
  virtual absl::StatusOr<ConnectionId> ConnectNow(const Peer& peer) = 0;
  // Returns whether frames could ever go by a connection that Connect or ConnectNow made, also by
  // one that is gone. False for a listener's connection.
  virtual bool WasUp(ConnectionId connection) const = 0;
  // Returns the bytes of payloads of other memory that were copied so far.
  virtual size_t bytes_copied() const = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_TRANSPORT_H_
