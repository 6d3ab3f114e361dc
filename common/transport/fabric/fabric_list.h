#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIST_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/fabric/fabric_library.h"

namespace bdn {

// One way out of this host that libfabric knows.
struct FabricProvider {
  std::string provider;  // as setting fabric-provider has it
  std::string domain;    // as setting fabric-domain has it; empty where there is none
  std::string address;   // for people
  bool is_usable = false;
  std::string why_not;             // empty where it is usable
  bool has_device_memory = false;  // it can register devices' memory (FI_HMEM)
};

// What this host has: each provider that transport=rdma can take with each of its domains, usable or
// not. Opens nothing. As FabricLibrary::Open where there is no libfabric.
absl::StatusOr<std::vector<FabricProvider>> ListFabricProviders(
    const std::string& library = kFabricLibrary);

// A provider of RDMA devices that is usable here, for who has no wish of his own; NotFound where none is,
// with each one's reason.
absl::StatusOr<FabricProvider> FindRdmaProvider(const std::string& library = kFabricLibrary);

// Of RDMA devices: "verbs;ofi_rxm", "efa".
bool IsRdmaProvider(std::string_view provider);

struct FabricWish {
  std::string provider;
  std::string domain;
  std::string interface;
  bool device_memory = false;  // with FI_HMEM, where the provider offers it
};
// The first of what is wished for; to be freed by the library. NotFound says what there is.
absl::StatusOr<fi_info*> FindFabric(const FabricLibrary& library, const FabricWish& wish);

// Whether this was found with FI_HMEM.
bool HasDeviceMemory(const fi_info& info);

// What a registration's failure means: ResourceExhausted, with the bytes that it takes and how to raise
// the limit, where `error` (an errno) says that memory could not be locked.
absl::Status DescribeRegistrationFailure(const std::string& provider, const char* reason, int error,
                                         uint64_t bytes, uint64_t memlock_limit);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIST_H_
