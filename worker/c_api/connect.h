#ifndef BANDONEON_WORKER_C_API_CONNECT_H_
#define BANDONEON_WORKER_C_API_CONNECT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "worker/client.h"
#include "worker/local/local_cluster.h"

// From settings to a client of a job: a worker over gRPC and ZeroMQ, or inside a local cluster.

namespace bdn {

// Settings as flags over the environment. InvalidArgument names the one that is wrong.
absl::StatusOr<Config> LoadWorkerConfig(const std::vector<std::string>& flags);

// `clock` is borrowed and outlives the client, as `cluster` does.
absl::StatusOr<std::unique_ptr<Client>> ConnectWorker(const Config& config, const Clock* clock);
absl::StatusOr<std::unique_ptr<Client>> ConnectLocalWorker(const Config& config, const Clock* clock,
                                                           LocalCluster* cluster);

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_CONNECT_H_
