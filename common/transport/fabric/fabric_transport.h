#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_TRANSPORT_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/forwarding.h"
#include "common/transport/transport.h"

namespace bdn {

// The scheme of an endpoint whose address is the name of a libfabric provider. Two ends that are
// connected over the network and have the same provider meet over it.
inline constexpr std::string_view kFabricScheme = "fabric";

// The options of a fabric transport.
struct FabricOptions {
  FabricEndpoint::Options endpoint;
  // Whether the fabric must be used: then Connect refuses a peer that offers no fabric of this
  // provider, and frames do not take the network because meetings fail.
  bool always = true;
  // The memory that is granted to each peer, 1 MiB to 512 MiB. It is pinned where the provider pins
  // memory.
  uint64_t window_bytes = uint64_t{64} << 20;
  // The longest payload. To send a longer one ends in InvalidArgument; a peer that sends one loses
  // its connection.
  uint64_t max_payload_bytes = kMaxPayloadBytes;
  // Limits of what waits to be sent to one peer of a listener. Frames beyond them end in
  // ResourceExhausted.
  uint64_t max_bytes_queued = uint64_t{2} << 30;
  int max_frames_queued = 65536;
  // After so long without an answer over the network, a connector meets its peer anew; 0 means
  // never.
  absl::Duration silence_timeout = absl::Seconds(10);
  const Clock* clock = nullptr;  // borrowed; null for one of its own
};

// A transport that sends frames over libfabric between peers that are connected, known and admitted
// over a network, which it owns. It listens and connects at the addresses of the network.
// Thread-safe.
//
// A payload of more than kFabricMessageBytes is written by the sender's network card into memory
// that the receiver has granted, and is read there (Frame::is_lent). A shorter one goes as a
// message. One of more than a quarter of the peer's window goes over the network. A payload is
// copied only if its receiver holds more than it lends, or if it lies in memory that the provider
// cannot send from (memory()).
//
// One thread polls the provider. It blocks where the provider has a file descriptor to block on;
// elsewhere it looks ever less often, down to once a millisecond.
//
// A payload on the fabric is neither encrypted nor authenticated, whatever the network does.
class FabricTransport : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  // Returns the errors of FabricEndpoint::Open, and InvalidArgument for options out of range.
  // `network` is taken on success, and stays the caller's after an error.
  static absl::StatusOr<std::unique_ptr<FabricTransport>> Make(std::unique_ptr<Transport>&& network,
                                                               const FabricOptions& options);

  // The provider's name of the device in use.
  virtual const std::string& domain() const = 0;
  // Bytes of payloads that were copied so far, before they left and after they arrived.
  virtual uint64_t bytes_copied() const = 0;
  // The number of sessions that have a window now.
  virtual size_t num_sessions() const = 0;
  // The number of windows that were granted so far, one for each meeting.
  virtual uint64_t num_meetings() const = 0;
};

// The longest payload that goes as a message.
inline constexpr size_t kFabricMessageBytes = 8192;

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_TRANSPORT_H_
