#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SETTINGS_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SETTINGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/config.h"

namespace bdn {

// The settings of a fabric. Builds without libfabric's headers have them, too.
struct FabricSettings {
  std::string provider = {};   // empty: that of an RDMA device, if there is one
  std::string domain = {};     // empty: the provider's first
  std::string interface = {};  // empty: the domain's first
  uint64_t window_bytes = uint64_t{64} << 20;
};

// Reads the settings fabric-*. InvalidArgument names the one that is wrong.
absl::StatusOr<FabricSettings> ReadFabricSettings(const Config& config);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_SETTINGS_H_
