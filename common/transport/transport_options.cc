#include "common/transport/transport_options.h"

#include <string>

#include "common/base/status.h"

namespace bdn {
namespace {

absl::StatusOr<SharedMemoryUse> ReadSharedMemoryUse(const std::string& transport, bool has_link) {
  // A link that is to be slow is one that frames take.
  if (transport == "auto") {
    return has_link ? SharedMemoryUse::kNever : SharedMemoryUse::kWherePossible;
  }
  if (transport == "network") return SharedMemoryUse::kNever;
  if (transport != "shm") {
    return InvalidArgument("setting transport is '%s': expected auto, shm or network", transport);
  }
  if (!has_link) return SharedMemoryUse::kAlways;
  return InvalidArgument("setting link is for a network, and transport is shm: leave one of them");
}

}  // namespace

absl::StatusOr<TransportOptions> ReadConnectorOptions(const Config& config, const Clock* clock) {
  TransportOptions options{.clock = clock};
  BDN_ASSIGN_OR_RETURN(options.link_bytes_per_second, config.Rate("link"));
  BDN_ASSIGN_OR_RETURN(options.io_threads, config.Int("io-threads", 0, 64));
  BDN_ASSIGN_OR_RETURN(options.connection_timeout, config.Duration("connection-timeout"));
  BDN_ASSIGN_OR_RETURN(
      options.shared_memory,
      ReadSharedMemoryUse(config.Text("transport"), options.link_bytes_per_second != 0));
  const bool is_never = options.connection_timeout == absl::ZeroDuration();
  if (!is_never && (options.connection_timeout < absl::Seconds(1) ||
                    options.connection_timeout > absl::Hours(1))) {
    return InvalidArgument("setting connection-timeout is %s: expected 1s to 1h, or 0s for never",
                           config.Text("connection-timeout"));
  }
  return options;
}

absl::StatusOr<TransportOptions> ReadListenerOptions(const Config& config, const Clock* clock) {
  BDN_ASSIGN_OR_RETURN(TransportOptions options, ReadConnectorOptions(config, clock));
  BDN_ASSIGN_OR_RETURN(options.max_bytes_queued, config.Bytes("max-bytes-queued"));
  BDN_ASSIGN_OR_RETURN(const int64_t frames, config.Int("max-frames-queued", 16, 1 << 24));
  options.max_frames_queued = static_cast<int>(frames);
  BDN_ASSIGN_OR_RETURN(options.max_frame_bytes, config.Bytes("max-frame-bytes"));
  constexpr uint64_t kLeastFrame = uint64_t{64} << 10;
  if (options.max_frame_bytes < kLeastFrame || options.max_frame_bytes > kMaxPayloadBytes) {
    return InvalidArgument("setting max-frame-bytes is %s: expected 64KiB to 1GiB",
                           config.Text("max-frame-bytes"));
  }
  const std::string& security = config.Text("data-security");
  if (security == "auto") return options;
  for (const LinkSecurity each :
       {LinkSecurity::kOpen, LinkSecurity::kAuthenticated, LinkSecurity::kEncrypted}) {
    if (security == LinkSecurityName(each)) options.security = each;
  }
  if (options.security.has_value()) return options;
  return InvalidArgument(
      "setting data-security is '%s': expected auto, encrypted, authenticated or open", security);
}

}  // namespace bdn
