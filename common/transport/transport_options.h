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

// The use of a faster way than the network, shared memory or a fabric.
enum class Use {
  kNever,
  kWherePossible,  // else the network is used, and the log says why
  kAlways,         // a peer with which it is not possible is not connected to
};

// The settings of a process's transports.
struct TransportOptions {
  double link_bytes_per_second = 0;  // each way, for trials of a slow link; 0 is no limit
  const Clock* clock = nullptr;      // borrowed
  // The security of listeners. Unset: encrypted, but authenticated where they listen on this
  // machine alone.
  std::optional<LinkSecurity> security = std::nullopt;
  int io_threads = 0;  // 0: chosen by the machine
  absl::Duration connection_timeout = absl::Seconds(10);
  // The most that may wait to be sent to one peer of a listener.
  uint64_t max_bytes_queued = uint64_t{2} << 30;
  int max_frames_queued = 65536;                // the same limit in frames
  uint64_t max_frame_bytes = kMaxPayloadBytes;  // of a payload, in both directions
  Use use_shared_memory = Use::kNever;
  // The directory of listeners' socket files for this machine; used only if it is private.
  std::string socket_directory = {};
  Use use_fabric = Use::kNever;
  FabricSettings fabric;
};

// Reads the options of a listener from these settings: link, io-threads, connection-timeout,
// transport, fabric-*, data-security, max-bytes-queued, max-frames-queued and max-frame-bytes.
// InvalidArgument names the setting that is wrong.
absl::StatusOr<TransportOptions> ReadListenerOptions(const Config& config, const Clock* clock);
// Reads the options of a connector, from the first five of these settings.
absl::StatusOr<TransportOptions> ReadConnectorOptions(const Config& config, const Clock* clock);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_TRANSPORT_OPTIONS_H_
