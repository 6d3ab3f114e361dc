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

// The scheme of an endpoint whose address is the name of a provider. Peers that are connected over
// the network meet there.
inline constexpr std::string_view kFabricScheme = "fabric";

struct FabricOptions {
  FabricEndpoint::Options endpoint;
  // A peer that offers no fabric of this provider is not connected to, and one with which it fails is not
  // reached over the network instead.
  bool always = true;
  // Granted to each peer: pinned where the provider pins memory. 1 MiB to 512 MiB.
  uint64_t window_bytes = uint64_t{64} << 20;
  // Sending more ends in InvalidArgument; a peer that sends more loses its connection.
  uint64_t max_payload_bytes = kMaxPayloadBytes;
  // Waiting to go to one peer of a listener. Frames beyond them end in ResourceExhausted.
  uint64_t max_bytes_queued = uint64_t{2} << 30;
  int max_frames_queued = 65536;
  // A peer that does not answer over the network for so long is met anew; 0 is for ever.
  absl::Duration silence_timeout = absl::Seconds(10);
  const Clock* clock = nullptr;  // borrowed; null for one of its own
};

// Frames over a fabric of libfabric's, between peers that are connected, known and admitted over
// `network`: what it speaks, this does. Payloads of more than kFabricMessageBytes are written by the
// sender's network card into memory that the receiver granted, and read there (Frame::is_lent); smaller
// ones are messages; those of more than a quarter of the peer's window go over the network. Neither is
// copied by us, but while a peer holds more than it lends, or a payload is of memory that the provider
// cannot send from (memory()). One thread polls: by blocking, where the provider has something to block
// on, else by looking, ever less often, up to once a millisecond.
//
// A payload on the fabric is neither encrypted nor authenticated, whatever the network does.
class FabricTransport : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  // As FabricEndpoint::Open; InvalidArgument: options out of range. `network` is taken if it succeeds, and
  // stays the caller's if not.
  static absl::StatusOr<std::unique_ptr<FabricTransport>> Make(std::unique_ptr<Transport>&& network,
                                                               const FabricOptions& options);

  virtual const std::string& domain() const = 0;  // the provider's name of what it goes by
  // Bytes of payloads that were copied so far, on their way out and after they came.
  virtual uint64_t bytes_copied() const = 0;
  // Peers that are met over the fabric now.
  virtual size_t num_sessions() const = 0;
  // Windows that were granted so far: one a meeting.
  virtual uint64_t num_meetings() const = 0;
};

// The longest payload that goes as a message.
inline constexpr size_t kFabricMessageBytes = 8192;

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_TRANSPORT_H_
