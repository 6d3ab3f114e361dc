#ifndef BANDONEON_WORKER_C_API_CONNECT_H_
#define BANDONEON_WORKER_C_API_CONNECT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/cluster/trace_dump.h"
#include "common/cluster/trace_fetch.h"
#include "common/telemetry/registry.h"
#include "worker/client.h"
#include "worker/device/device_exchanges.h"
#include "worker/local/local_cluster.h"

// Makes a client of a job from settings: a worker over gRPC and ZeroMQ, a process attached to its
// host daemon, or a worker inside a local cluster.

namespace bdn {

// Reads the settings: flags override the environment. InvalidArgument names the setting that is
// wrong.
absl::StatusOr<Config> LoadWorkerConfig(const std::vector<std::string>& flags);

// Returns the status of the job whose scheduler the settings name, as FetchStatusJson does.
absl::StatusOr<std::string> AskStatus(const std::vector<std::string>& flags,
                                      absl::Duration timeout);

// Asks that scheduler for the latest records of its job's nodes, as FetchTraces does.
absl::Status AskForTraces(const std::vector<std::string>& flags, const DumpRequest& request,
                          const std::function<void(DumpedNode)>& take);

// The clock and the metrics of one worker of this process. Outlives the client.
struct ClientContext {
  SteadyClock clock;
  Registry telemetry;
};
// Joins the job, or attaches to the host daemon if setting `attach` names one.
absl::StatusOr<std::unique_ptr<Client>> ConnectWorker(const Config& config, ClientContext* context);
// Makes a worker of a local cluster. The cluster outlives the client, too.
absl::StatusOr<std::unique_ptr<Client>> ConnectLocalWorker(const Config& config,
                                                           ClientContext* context,
                                                           LocalCluster* cluster);

// Makes the exchanges of the client's tensors in the memory of NVIDIA's GPUs. All arguments outlive
// it.
absl::StatusOr<std::unique_ptr<DeviceExchanges>> MakeDeviceExchanges(const Config& config,
                                                                     Client* client,
                                                                     ClientContext* context);

// Returns a line for each of NVIDIA's GPUs, or one line that says why there is none.
std::string DescribeDevices(const Config& config);

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_CONNECT_H_
