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

// One provider and domain of libfabric on this machine, and whether it can be used.
struct FabricProvider {
  std::string provider;  // as setting fabric-provider has it
  std::string domain;    // as setting fabric-domain has it; empty where there is none
  std::string address;   // as text for people; empty where it is none of IP
  bool is_usable = false;
  std::string why_not;             // empty where it is usable
  bool has_device_memory = false;  // the domain can register devices' memory (FI_HMEM)
};

// Returns each provider that transport=rdma can take with each of its domains on this machine,
// usable or not. Opens no device. Returns the errors of FabricLibrary::Open where there is no
// libfabric.
absl::StatusOr<std::vector<FabricProvider>> ListFabricProviders(
    const std::string& library = kFabricLibrary);

// Returns the first usable provider of an RDMA device, for a process whose settings name none.
// NotFound says of each why it is not usable.
absl::StatusOr<FabricProvider> FindRdmaProvider(const std::string& library = kFabricLibrary);

// Whether the provider is one of RDMA devices: "verbs;ofi_rxm" or "efa".
bool IsRdmaProvider(std::string_view provider);

// The provider, domain and interface that a process asks for; an empty text asks for nothing.
struct FabricWish {
  std::string provider;
  std::string domain;
  std::string interface;
  bool device_memory = false;  // asks for FI_HMEM, where the provider offers it
};
// Returns the first that fits the wish, which the caller frees by the library's freeinfo. NotFound
// lists those that there are.
absl::StatusOr<fi_info*> FindFabric(const FabricLibrary& library, const FabricWish& wish);

// Whether FindFabric has found it with FI_HMEM.
bool HasDeviceMemory(const fi_info& info);

// Returns the error of a failed registration. It is ResourceExhausted, and says how to raise the
// limit of locked memory, where `error` (an errno) says that memory could not be locked; else
// Internal.
absl::Status DescribeRegistrationFailure(const std::string& provider, const char* reason, int error,
                                         uint64_t bytes, uint64_t memlock_limit);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_LIST_H_
