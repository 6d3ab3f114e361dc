#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIBRARY_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIBRARY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

struct fi_info;
struct fi_fabric_attr;
struct fid_fabric;

namespace bdn {

// Where the loader finds the host's own, its vendor's build included.
inline constexpr char kFabricLibrary[] = "libfabric.so.1";

// libfabric's entry points: all other calls go through what these return. It is opened when it is
// needed and never closed, as its providers leave threads and handlers of their own behind.
struct FabricLibrary {
  // NotFound: it is not on this machine; FailedPrecondition: it is too old. Both say what to install.
  static absl::StatusOr<FabricLibrary> Open(const std::string& path);

  int (*getinfo)(uint32_t version, const char* node, const char* service, uint64_t flags,
                 const fi_info* hints, fi_info** info) = nullptr;
  void (*freeinfo)(fi_info* info) = nullptr;
  fi_info* (*dupinfo)(const fi_info* info) = nullptr;
  int (*fabric)(fi_fabric_attr* attributes, fid_fabric** fabric, void* context) = nullptr;
  const char* (*strerror)(int error) = nullptr;
  uint32_t (*version)() = nullptr;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIBRARY_H_
