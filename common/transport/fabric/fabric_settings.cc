#include "common/transport/fabric/fabric_settings.h"

#include "common/base/status.h"

namespace bdn {

absl::StatusOr<FabricSettings> ReadFabricSettings(const Config& config) {
  FabricSettings settings;
  settings.provider = config.Text("fabric-provider");
  if (settings.provider == "shm") {
    return InvalidArgument(
        "setting fabric-provider is shm: libfabric's shared memory is not used, as a process that "
        "is killed can block the others there. On one host say transport=shm, or leave "
        "transport=auto");
  }
  settings.domain = config.Text("fabric-domain");
  settings.interface = config.Text("fabric-interface");
  BDN_ASSIGN_OR_RETURN(settings.window_bytes, config.Bytes("fabric-window"));
  constexpr uint64_t kLeast = uint64_t{1} << 20;
  constexpr uint64_t kMost = uint64_t{512} << 20;
  if (settings.window_bytes < kLeast || settings.window_bytes > kMost) {
    return InvalidArgument("setting fabric-window is %s: expected 1MiB to 512MiB",
                           config.Text("fabric-window"));
  }
  return settings;
}

}  // namespace bdn
