#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIBRARY_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIBRARY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

struct fi_info;
struct fi_fabric_attr;
struct fid_fabric;

namespace bdn {

// The name by which the loader finds this machine's library, which may be a vendor's build.
inline constexpr char kFabricLibrary[] = "libfabric.so.1";

// The entry points of libfabric; all other calls go through the objects that these return. The
// library is opened when it is first needed and never closed, because its providers leave threads
// and handlers of their own behind.
struct FabricLibrary {
  // Opens the library. NotFound: this machine has none. FailedPrecondition: it is too old. Both
  // errors say what to install or update.
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
