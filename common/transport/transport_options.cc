#include "common/transport/transport_options.h"

#include <cstdlib>
#include <string>

#include "common/base/status.h"

namespace bdn {
namespace {

absl::Status ReadWays(const Config& config, TransportOptions* options) {
  const std::string& transport = config.Text("transport");
  const bool has_link = options->link_bytes_per_second != 0;
  if (has_link && (transport == "shm" || transport == "rdma")) {
    return InvalidArgument("setting link is for a network, and transport is %s: leave one of them",
                           transport);
  }
  if (transport == "auto") {
    // A link's rate is for trials of a slow network, so no frame may go around it.
    if (has_link) return absl::OkStatus();
    options->use_shared_memory = Use::kWherePossible;
    options->use_fabric = Use::kWherePossible;
  } else if (transport == "shm") {
    options->use_shared_memory = Use::kAlways;
  } else if (transport == "rdma") {
    options->use_fabric = Use::kAlways;
  } else if (transport != "network") {
    return InvalidArgument("setting transport is '%s': expected auto, shm, rdma or network",
                           transport);
  }
  return absl::OkStatus();
}

// A fabric does not encrypt payloads, so a process takes it by itself only where a setting says
// that they need not be encrypted.
absl::Status CheckFabricSecurity(const Config& config, TransportOptions* options) {
  const bool asks_for_it = options->security == LinkSecurity::kEncrypted;
  if (options->use_fabric == Use::kAlways && asks_for_it) {
    return InvalidArgument(
        "setting data-security is %s, and transport is rdma: a fabric does not encrypt payloads. "
        "Say "
        "data-security=authenticated on a network that nobody else reads, or another transport",
        config.Text("data-security"));
  }
  const bool may_be_plain = options->security.has_value() && !asks_for_it;
  if (options->use_fabric == Use::kWherePossible && !may_be_plain) {
    options->use_fabric = Use::kNever;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TransportOptions> ReadConnectorOptions(const Config& config, const Clock* clock) {
  TransportOptions options{.clock = clock};
  BDN_ASSIGN_OR_RETURN(options.link_bytes_per_second, config.Rate("link"));
  BDN_ASSIGN_OR_RETURN(options.io_threads, config.Int("io-threads", 0, 64));
  BDN_ASSIGN_OR_RETURN(options.connection_timeout, config.Duration("connection-timeout"));
  BDN_RETURN_IF_ERROR(ReadWays(config, &options));
  BDN_ASSIGN_OR_RETURN(options.fabric, ReadFabricSettings(config));
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
  for (const LinkSecurity each :
       {LinkSecurity::kOpen, LinkSecurity::kAuthenticated, LinkSecurity::kEncrypted}) {
    if (security == LinkSecurityName(each)) options.security = each;
  }
  if (!options.security.has_value() && security != "auto") {
    return InvalidArgument(
        "setting data-security is '%s': expected auto, encrypted, authenticated or open", security);
  }
  BDN_RETURN_IF_ERROR(CheckFabricSecurity(config, &options));
  // The directory of a service or of the user's session; the latter, where both are set.
  for (const char* variable : {"RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"}) {
    const char* directory = std::getenv(variable);
    if (directory != nullptr) options.socket_directory = directory;
  }
  return options;
}

}  // namespace bdn
