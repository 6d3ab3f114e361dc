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

struct ShmOptions {
  // kOpen or kAuthenticated: listeners ask for the secret and a key that is admitted. In any case
  // both ends are processes of one user.
  LinkSecurity security = LinkSecurity::kAuthenticated;
  // Shown by connectors. Not empty where listeners ask for it.
  PublicKey key;
  // Sending more ends in InvalidArgument; a peer that sends more loses its connection.
  uint64_t max_payload_bytes = kMaxPayloadBytes;
  // Waiting to go to one peer of a listener. Frames beyond them end in ResourceExhausted.
  uint64_t max_bytes_queued = uint64_t{2} << 30;
  int max_frames_queued = 65536;
  absl::Duration handshake_timeout = absl::Seconds(5);
  int max_newcomers = 4096;      // connections in their handshake
  const Clock* clock = nullptr;  // borrowed; null for one of its own
};

// Shared memory between the processes of one user on one host, at "shm://name". Frames are read where
// their sender wrote them (Frame::is_lent): a payload of the memory that the transport lends is never
// copied, another once for all peers. One thread polls, by blocking; a peer that dies, stops, or writes what it
// likes costs its own connection.
//
// SendDone says that a frame was handed over; its payload is shared until the peer has read it.
// Connections come back by themselves; what had not been read then is lost.
class ShmTransport : public Transport {
 public:
  // InvalidArgument: options out of range; ResourceExhausted: no descriptors are left.
  static absl::StatusOr<std::unique_ptr<ShmTransport>> Make(const ShmOptions& options);

  // As Connect, if somebody of this user listens there now; else why not.
  virtual absl::StatusOr<ConnectionId> ConnectNow(const Peer& peer) = 0;
  // Whether frames could ever go by a connection; of one that is gone, too.
  virtual bool WasUp(ConnectionId connection) const = 0;
  // Bytes of payloads of other memory that were copied so far.
  virtual size_t bytes_copied() const = 0;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_SHM_SHM_TRANSPORT_H_
