#include "common/transport/transport_factory.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/transport/auto_transport.h"
#include "common/transport/throttled.h"
#include "common/transport/zmq/malloc_tuning.h"
#include "common/transport/zmq/zmq_transport.h"

#ifdef BDN_HAS_FABRIC
#include <filesystem>

#include "common/transport/fabric/fabric_list.h"
#include "common/transport/fabric/fabric_transport.h"
#endif

namespace bdn {
namespace {

using TransportPtr = std::unique_ptr<Transport>;

// A hello of ours, or of one that finds a way around the network.
constexpr uint64_t kMostFirstBytes = uint64_t{64} << 10;

// By the machine: one for every four processors.
int ChooseIoThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 4);
}

absl::StatusOr<TransportPtr> MakeZmq(TransportPtr*, const TransportOptions& options) {
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

absl::StatusOr<TransportPtr> MakeShm(TransportPtr* network, const TransportOptions& options) {
  // A network whose transports have no keys is open itself, and a listener beside it that asked for
  // keys would let in nobody.
  const bool is_open = options.security == LinkSecurity::kOpen || (*network)->public_key().empty();
  BDN_ASSIGN_OR_RETURN(
      std::unique_ptr<ShmTransport> host,
      ShmTransport::Make({.security = is_open ? LinkSecurity::kOpen : LinkSecurity::kAuthenticated,
                          .key = (*network)->public_key(),
                          .max_payload_bytes = options.max_frame_bytes,
                          .max_bytes_queued = options.max_bytes_queued,
                          .max_frames_queued = options.max_frames_queued,
                          .clock = options.clock}));
  return MakeAutoTransport(std::move(*network), std::move(host),
                           options.use_shared_memory == Use::kAlways, options.socket_directory);
}

#ifdef BDN_HAS_FABRIC
// Whether looking for a provider is worth it: opening libfabric is not free.
bool HasRdmaDevice() {
  std::error_code error;
  const std::filesystem::directory_iterator devices("/sys/class/infiniband", error);
  return !error && devices != std::filesystem::directory_iterator();
}

absl::StatusOr<TransportPtr> MakeFabric(TransportPtr* network, const TransportOptions& options) {
  FabricSettings settings = options.fabric;
  if (settings.provider.empty()) {
    const absl::StatusOr<FabricProvider> found = FindRdmaProvider();
    if (!found.ok()) return Annotate(found.status(), "setting fabric-provider is empty");
    settings.provider = found->provider;
    if (settings.domain.empty()) settings.domain = found->domain;
  }
  BDN_ASSIGN_OR_RETURN(
      std::unique_ptr<FabricTransport> fabric,
      FabricTransport::Make(std::move(*network), {.endpoint = {.provider = settings.provider,
                                                               .domain = settings.domain,
                                                               .interface = settings.interface},
                                                  .always = options.use_fabric == Use::kAlways,
                                                  .window_bytes = settings.window_bytes,
                                                  .max_payload_bytes = options.max_frame_bytes,
                                                  .max_bytes_queued = options.max_bytes_queued,
                                                  .max_frames_queued = options.max_frames_queued,
                                                  .silence_timeout = options.connection_timeout,
                                                  .clock = options.clock}));
  LogInfo("payloads go over the fabric %s, domain %s, in the clear", settings.provider,
          fabric->domain());
  return fabric;
}
#else
bool HasRdmaDevice() { return false; }

absl::StatusOr<TransportPtr> MakeFabric(TransportPtr*, const TransportOptions&) {
  return Unimplemented(
      "this was built without libfabric's headers (BANDONEON_FABRIC): build it where libfabric-dev "
      "is installed");
}
#endif

Use OfFabric(const TransportOptions& options) {
  // Where nobody asked for it, a host without a card does not look for one.
  const bool may_be_there = !options.fabric.provider.empty() || HasRdmaDevice();
  return options.use_fabric == Use::kWherePossible && !may_be_there ? Use::kNever
                                                                    : options.use_fabric;
}

Use OfSharedMemory(const TransportOptions& options) { return options.use_shared_memory; }

// The transports that there are. Those that are no network are put around one in this order.
constexpr TransportRow kRows[] = {
    TransportRow{"tcp", MakeZmq},
    TransportRow{"ipc", MakeZmq},
    TransportRow{"fabric", MakeFabric, OfFabric, "payloads go over TCP", "transport is rdma"},
    TransportRow{"shm", MakeShm, OfSharedMemory,
                 "processes of this host are reached over the network, too", "transport is shm"},
};

using Rows = std::vector<TransportRow>;

absl::StatusOr<TransportPtr> MakeNetwork(const Rows& rows, std::string_view address,
                                         const TransportOptions& options) {
  const std::string_view scheme = address.substr(0, address.find("://"));
  std::string known;
  for (const TransportRow& row : rows) {
    if (row.use != nullptr) continue;
    if (row.scheme == scheme) return row.make(nullptr, options);
    known += (known.empty() ? "" : ", ") + std::string(row.scheme) + "://";
  }
  return InvalidArgument("address '%s': no transport speaks it; there is %s", std::string(address),
                         known);
}

// Puts the row's transport around `transport`, where the options ask for it.
absl::Status Surround(const TransportRow& row, const TransportOptions& options,
                      TransportPtr* transport) {
  const Use use = row.use == nullptr ? Use::kNever : row.use(options);
  if (use == Use::kNever) return absl::OkStatus();
  absl::StatusOr<TransportPtr> made = row.make(transport, options);
  if (made.ok()) {
    *transport = *std::move(made);
    return absl::OkStatus();
  }
  if (use == Use::kAlways) return Annotate(made.status(), std::string(row.setting));
  LogWarning("%s: %s", row.instead, made.status().message());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TransportPtr> MakeTransport(std::string_view address,
                                           const TransportOptions& options,
                                           std::span<const TransportRow> more) {
  Rows rows(std::begin(kRows), std::end(kRows));
  rows.insert(rows.end(), more.begin(), more.end());
  BDN_ASSIGN_OR_RETURN(TransportPtr transport, MakeNetwork(rows, address, options));
  for (const TransportRow& row : rows) {
    BDN_RETURN_IF_ERROR(Surround(row, options, &transport));
  }
  return MakeThrottled(std::move(transport), options.link_bytes_per_second, options.clock);
}

void PrepareProcessForTransports() { TuneMallocForLargeBlocks(); }

}  // namespace bdn
