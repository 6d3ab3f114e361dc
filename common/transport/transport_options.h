#ifndef BANDONEON_COMMON_TRANSPORT_TRANSPORT_OPTIONS_H_
#define BANDONEON_COMMON_TRANSPORT_TRANSPORT_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/link_security.h"
#include "common/transport/fabric/fabric_settings.h"
#include "common/wire/frame.h"

namespace bdn {

// Whether frames go some way besides the network.
enum class Use {
  kNever,
  kWherePossible,  // else the network, and the log says why
  kAlways,         // a peer with which that is not possible is not connected to
};

struct TransportOptions {
  double link_bytes_per_second = 0;  // each way, for trials of a slow link; 0 is no limit
  const Clock* clock = nullptr;      // borrowed
  // Of listeners; unset: encrypted, but where they listen on this machine alone authenticated.
  std::optional<LinkSecurity> security = std::nullopt;
  int io_threads = 0;  // 0 chooses by the machine
  absl::Duration connection_timeout = absl::Seconds(10);
  uint64_t max_bytes_queued = uint64_t{2} << 30;  // to one peer of a listener
  int max_frames_queued = 65536;                  // as well
  uint64_t max_frame_bytes = kMaxPayloadBytes;    // of a payload, either way
  Use use_shared_memory = Use::kNever;
  std::string socket_directory = {};  // where listeners put theirs for this host, if it is private
  Use use_fabric = Use::kNever;
  FabricSettings fabric;
};

// Of the settings that have them: link, io-threads, connection-timeout, transport, fabric-*, data-security,
// max-bytes-queued, max-frames-queued and max-frame-bytes. InvalidArgument names the one that is wrong.
absl::StatusOr<TransportOptions> ReadListenerOptions(const Config& config, const Clock* clock);
// As above, of the first five.
absl::StatusOr<TransportOptions> ReadConnectorOptions(const Config& config, const Clock* clock);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_OPTIONS_H_
