#include "common/transport/transport_factory.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/transport/auto_transport.h"
#include "common/transport/throttled.h"
#include "common/transport/zmq/malloc_tuning.h"
#include "common/transport/zmq/zmq_transport.h"

#ifdef BDN_HAS_FABRIC
#include <filesystem>

#include "common/transport/fabric/fabric_providers.h"
#include "common/transport/fabric/fabric_transport.h"
#endif

namespace bdn {
namespace {

struct SchemeRow {
  std::string_view scheme;
  absl::StatusOr<std::unique_ptr<Transport>> (*make)(const TransportOptions& options);
};

// A hello of ours, or of one that finds a way around the network.
constexpr uint64_t kMostFirstBytes = uint64_t{64} << 10;

// By the machine: one for every four processors.
int ChooseIoThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4);
}

absl::StatusOr<std::unique_ptr<Transport>> MakeZmq(const TransportOptions& options) {
  return MakeZmqTransport(
      {.io_threads = options.io_threads > 0 ? options.io_threads : ChooseIoThreads(),
       .max_payload_bytes = options.max_frame_bytes,
       .max_first_bytes = kMostFirstBytes,
       .security = options.security,
       .silence_timeout = options.connection_timeout,
       .max_bytes_queued = options.max_bytes_queued,
       .max_frames_queued = options.max_frames_queued,
       .clock = options.clock});
}

absl::StatusOr<std::unique_ptr<Transport>> AddSharedMemory(std::unique_ptr<Transport> network,
                                                           const TransportOptions& options) {
  const bool is_open = options.security == LinkSecurity::kOpen;
  absl::StatusOr<std::unique_ptr<ShmTransport>> host =
      ShmTransport::Make({.security = is_open ? LinkSecurity::kOpen : LinkSecurity::kAuthenticated,
                          .key = network->public_key(),
                          .max_payload_bytes = options.max_frame_bytes,
                          .max_bytes_queued = options.max_bytes_queued,
                          .max_frames_queued = options.max_frames_queued,
                          .clock = options.clock});
  const bool always = options.shared_memory == SharedMemoryUse::kAlways;
  if (host.ok()) {
    return MakeAutoTransport(std::move(network), *std::move(host), always,
                             options.socket_directory);
  }
  if (always) return host.status();
  LogWarning("processes of this host are reached over the network, too: %s",
             host.status().message());
  return network;
}

#ifdef BDN_HAS_FABRIC
// Whether looking for a provider is worth it: opening libfabric is not free.
bool HasRdmaDevice() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

absl::StatusOr<std::unique_ptr<FabricTransport>> MakeFabric(std::unique_ptr<Transport>* network,
                                                            const TransportOptions& options) {
  std::string provider = options.fabric_provider;
  std::string domain = options.fabric_domain;
  if (provider.empty()) {
    BDN_ASSIGN_OR_RETURN(const FabricProvider found, FindRdmaProvider());
    provider = found.provider;
    if (domain.empty()) domain = found.domain;
  }
  BDN_ASSIGN_OR_RETURN(std::unique_ptr<FabricTransport> fabric,
                       FabricTransport::Make(std::move(*network),
                                             {.endpoint = {.provider = provider,
                                                           .domain = domain,
                                                           .interface = options.fabric_interface},
                                              .always = options.fabric == FabricUse::kAlways,
                                              .window_bytes = options.fabric_window_bytes,
                                              .max_payload_bytes = options.max_frame_bytes,
                                              .max_bytes_queued = options.max_bytes_queued,
                                              .max_frames_queued = options.max_frames_queued,
                                              .silence_timeout = options.connection_timeout,
                                              .clock = options.clock}));
  LogInfo("payloads go over the fabric %s, domain %s, in the clear", provider, fabric->domain());
  return fabric;
}

absl::StatusOr<std::unique_ptr<Transport>> AddFabric(std::unique_ptr<Transport> network,
                                                     const TransportOptions& options) {
  const bool always = options.fabric == FabricUse::kAlways;
  if (!always && options.fabric_provider.empty() && !HasRdmaDevice()) return network;
  absl::StatusOr<std::unique_ptr<FabricTransport>> fabric = MakeFabric(&network, options);
  if (fabric.ok()) return *std::move(fabric);
  if (always) {
    return Annotate(fabric.status(),
                    "transport is rdma" + std::string(options.fabric_provider.empty()
                                                          ? ", and setting fabric-provider is empty"
                                                          : ""));
  }
  LogWarning("payloads go over TCP: %s", fabric.status().message());
  return network;
}
#else
absl::StatusOr<std::unique_ptr<Transport>> AddFabric(std::unique_ptr<Transport> network,
                                                     const TransportOptions& options) {
  if (options.fabric != FabricUse::kAlways) return network;
  return Unimplemented(
      "transport is rdma, and this was built without libfabric's headers (BANDONEON_FABRIC): build it "
      "where libfabric-dev is installed");
}
#endif

constexpr SchemeRow kSchemes[] = {{"tcp", MakeZmq}, {"ipc", MakeZmq}};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(std::string_view address,
                                                         const TransportOptions& options) {
  const std::string_view scheme = address.substr(0, address.find("://"));
  std::string known;
  for (const SchemeRow& row : kSchemes) {
    if (row.scheme == scheme) {
      BDN_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, row.make(options));
      if (options.fabric != FabricUse::kNever) {
        BDN_ASSIGN_OR_RETURN(transport, AddFabric(std::move(transport), options));
      }
      if (options.shared_memory != SharedMemoryUse::kNever) {
        BDN_ASSIGN_OR_RETURN(transport, AddSharedMemory(std::move(transport), options));
      }
      return MakeThrottled(std::move(transport), options.link_bytes_per_second, options.clock);
    }
    known += (known.empty() ? "" : ", ") + std::string(row.scheme) + "://";
  }
  return InvalidArgument("address '%s': no transport speaks it; there is %s", std::string(address),
                         known);
}

void PrepareProcessForTransports() { TuneMallocForLargeBlocks(); }

}  // namespace bdn
