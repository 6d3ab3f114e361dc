#ifndef BANDONEON_WORKER_C_API_CONNECT_H_
#define BANDONEON_WORKER_C_API_CONNECT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/telemetry/registry.h"
#include "worker/client.h"
#include "worker/device/device_exchanges.h"
#include "worker/local/local_cluster.h"

// From settings to a client of a job: a worker over gRPC and ZeroMQ, or inside a local cluster.

namespace bdn {

// Settings as flags over the environment. InvalidArgument names the one that is wrong.
absl::StatusOr<Config> LoadWorkerConfig(const std::vector<std::string>& flags);

// The status of the job whose scheduler the settings name, as FetchStatusJson has it.
absl::StatusOr<std::string> AskStatus(const std::vector<std::string>& flags,
                                      absl::Duration timeout);

// What a process hands down; outlives the client.
struct ClientContext {
  SteadyClock clock;
  Registry telemetry;
};
absl::StatusOr<std::unique_ptr<Client>> ConnectWorker(const Config& config, ClientContext* context);
// The cluster outlives the client, too.
absl::StatusOr<std::unique_ptr<Client>> ConnectLocalWorker(const Config& config,
                                                           ClientContext* context,
                                                           LocalCluster* cluster);

// For its tensors in the memory of NVIDIA's GPUs. All outlive it.
absl::StatusOr<std::unique_ptr<DeviceExchanges>> MakeDeviceExchanges(const Config& config,
                                                                     Client* client,
                                                                     ClientContext* context);

// NVIDIA's GPUs, a line each; or one that says why there is none.
std::string DescribeDevices(const Config& config);

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_CONNECT_H_
