#include "common/transport/fabric/fabric_list.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "common/base/status.h"

namespace bdn {
namespace {

using InfoPtr = std::unique_ptr<fi_info, void (*)(fi_info*)>;

struct Known {
  std::string_view name;
  bool is_rdma;
};
// The providers that are asked for, the best first.
constexpr Known kKnown[] = {{"efa", true}, {"verbs;ofi_rxm", true}, {"tcp;ofi_rxm", false}};

// Flags of libfabric's headers; 0 where the headers are older than registration of devices' memory.
#if defined(FI_HMEM) && defined(FI_MR_HMEM)
constexpr uint64_t kDeviceMemory = FI_HMEM;
constexpr int kDeviceMemoryMode = FI_MR_HMEM;
#else
constexpr uint64_t kDeviceMemory = 0;
constexpr int kDeviceMemoryMode = 0;
#endif

// Returns the demands of the transport on any provider. mr_mode lists the provider's demands that
// this code can meet, of which each provider makes some.
InfoPtr MakeHints(const FabricLibrary& library, const FabricWish& wish) {
  InfoPtr hints(library.dupinfo(nullptr), library.freeinfo);
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->fabric_attr->prov_name = strdup(wish.provider.c_str());
  if (!wish.domain.empty()) hints->domain_attr->name = strdup(wish.domain.c_str());
  if (wish.device_memory) {
    hints->caps |= kDeviceMemory;
    hints->domain_attr->mr_mode |= kDeviceMemoryMode;
  }
  return hints;
}

std::string AddressText(const fi_info& info) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  if (info.addr_format == FI_SOCKADDR_IN && info.src_addrlen >= sizeof(sockaddr_in)) {
    const auto* address = static_cast<const sockaddr_in*>(info.src_addr);
    inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
  } else if (info.addr_format == FI_SOCKADDR_IN6 && info.src_addrlen >= sizeof(sockaddr_in6)) {
    const auto* address = static_cast<const sockaddr_in6*>(info.src_addr);
    inet_ntop(AF_INET6, &address->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

// Whether the address is a link-local one, which peers cannot use because it means nothing without
// the link.
bool IsLinkLocal(const fi_info& info) {
  if (info.addr_format != FI_SOCKADDR_IN6 || info.src_addrlen < sizeof(sockaddr_in6)) return false;
  return IN6_IS_ADDR_LINKLOCAL(&static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr);
}

// Under this limit of locked memory no usual window fits.
constexpr uint64_t kLeastMemlock = uint64_t{64} << 20;

std::string WhyNot(const fi_info& info) {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool is_pinned = (info.domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  if (is_pinned && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < kLeastMemlock) {
    return absl::StrFormat(
        "memlock allows %d bytes, and it pins its memory: ulimit -l unlimited, "
        "LimitMEMLOCK=infinity, or "
        "--ulimit memlock=-1 and the capability IPC_LOCK in a container",
        limit.rlim_cur);
  }
  return "";
}

std::string ReasonOf(const FabricLibrary& library, int error) {
  if (error == -FI_ENODATA) return "no device of it is on this host, or its driver is not loaded";
  return library.strerror(-error);
}

std::string DescribeWish(const FabricWish& wish) {
  std::string text;
  if (!wish.domain.empty()) absl::StrAppendFormat(&text, " with domain '%s'", wish.domain);
  if (!wish.interface.empty()) absl::StrAppendFormat(&text, " at '%s'", wish.interface);
  return text;
}

// Asks libfabric for what fits a wish. `error` is libfabric's number.
InfoPtr Ask(const FabricLibrary& library, const FabricWish& wish, int* error) {
  const InfoPtr hints = MakeHints(library, wish);
  const char* const node = wish.interface.empty() ? nullptr : wish.interface.c_str();
  fi_info* found = nullptr;
  *error = library.getinfo(FI_VERSION(1, 9), node, nullptr, node == nullptr ? 0 : FI_SOURCE,
                           hints.get(), &found);
  return {found, library.freeinfo};
}

// Returns the first that fits the wish; null for none.
const fi_info* FirstOf(const fi_info* all, const FabricWish& wish) {
  for (const fi_info* info = all; info != nullptr; info = info->next) {
    // Some providers ignore the domain of the hints.
    const bool is_wished = wish.domain.empty() || wish.domain == info->domain_attr->name;
    if (is_wished && (!wish.interface.empty() || !IsLinkLocal(*info))) return info;
  }
  return nullptr;
}

bool HasDomainWithDeviceMemory(const fi_info* all, const fi_info& like) {
  for (const fi_info* info = all; info != nullptr; info = info->next) {
    if (HasDeviceMemory(*info) &&
        std::strcmp(info->domain_attr->name, like.domain_attr->name) == 0) {
      return true;
    }
  }
  return false;
}

std::vector<FabricProvider> ListAll(const FabricLibrary& library) {
  std::vector<FabricProvider> providers;
  for (const Known& known : kKnown) {
    const std::string name(known.name);
    int error = 0;
    const InfoPtr all = Ask(library, {.provider = name}, &error);
    if (error != 0) {
      providers.push_back({.provider = name, .why_not = ReasonOf(library, error)});
      continue;
    }
    int no_device_memory = 0;
    const InfoPtr with_device_memory =
        Ask(library, {.provider = name, .device_memory = true}, &no_device_memory);
    for (const fi_info* info = all.get(); info != nullptr; info = info->next) {
      const auto is_same = [&](const FabricProvider& other) {  // some are listed once for each mode
        return other.provider == name && other.domain == info->domain_attr->name &&
               other.address == AddressText(*info);
      };
      if (IsLinkLocal(*info) || std::any_of(providers.begin(), providers.end(), is_same)) continue;
      std::string why_not = WhyNot(*info);
      const bool is_usable = why_not.empty();
      providers.push_back({name, info->domain_attr->name, AddressText(*info), is_usable,
                           std::move(why_not),
                           HasDomainWithDeviceMemory(with_device_memory.get(), *info)});
    }
  }
  return providers;
}

}  // namespace

bool IsRdmaProvider(std::string_view provider) {
  return std::any_of(std::begin(kKnown), std::end(kKnown), [provider](const Known& known) {
    return known.name == provider && known.is_rdma;
  });
}

bool HasDeviceMemory(const fi_info& info) {
  return kDeviceMemory != 0 && (info.caps & kDeviceMemory) != 0;
}

absl::StatusOr<std::vector<FabricProvider>> ListFabricProviders(const std::string& path) {
  BDN_ASSIGN_OR_RETURN(const FabricLibrary library, FabricLibrary::Open(path));
  return ListAll(library);
}

absl::StatusOr<FabricProvider> FindRdmaProvider(const std::string& path) {
  BDN_ASSIGN_OR_RETURN(const std::vector<FabricProvider> all, ListFabricProviders(path));
  std::string reasons;
  for (const FabricProvider& each : all) {
    if (!IsRdmaProvider(each.provider)) continue;
    if (each.is_usable) return each;
    absl::StrAppendFormat(&reasons, "%s%s: %s", reasons.empty() ? "" : "; ", each.provider,
                          each.why_not);
  }
  return NotFound("no RDMA device can be used (%s)", reasons);
}

absl::StatusOr<fi_info*> FindFabric(const FabricLibrary& library, const FabricWish& wish) {
  int error = 0;
  InfoPtr all = Ask(library, wish, &error);
  const fi_info* first = FirstOf(all.get(), wish);
  if (first == nullptr && wish.device_memory) {
    FabricWish without = wish;
    without.device_memory = false;
    all = Ask(library, without, &error);
    first = FirstOf(all.get(), without);
  }
  if (first != nullptr) return library.dupinfo(first);
  std::string there_is;
  for (const FabricProvider& each : ListAll(library)) {
    absl::StrAppendFormat(&there_is, "%s%s %s%s%s", there_is.empty() ? "" : "; ", each.provider,
                          each.domain, each.is_usable ? "" : ": ", each.why_not);
  }
  return NotFound("no fabric provider '%s'%s on this host: %s. There is: %s", wish.provider,
                  DescribeWish(wish), error == 0 ? "none is so called" : ReasonOf(library, error),
                  there_is);
}

absl::Status DescribeRegistrationFailure(const std::string& provider, const char* reason, int error,
                                         uint64_t bytes, uint64_t memlock_limit) {
  const bool is_limit = error == ENOMEM || error == EPERM || error == EAGAIN;
  if (!is_limit || memlock_limit == RLIM_INFINITY) {
    return Internal("fabric provider %s: registering %d bytes: %s", provider, bytes, reason);
  }
  return ResourceExhausted(
      "fabric provider %s: registering %d bytes: %s; memlock allows this process %d bytes in all, "
      "and each connection takes so many: ulimit -l unlimited, LimitMEMLOCK=infinity of a unit, or "
      "--ulimit memlock=-1 and the capability IPC_LOCK of a container; or a smaller fabric-window",
      provider, bytes, reason, memlock_limit);
}

}  // namespace bdn
