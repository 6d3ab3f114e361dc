#ifndef BANDONEON_WORKER_C_API_CONNECT_H_
#define BANDONEON_WORKER_C_API_CONNECT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "worker/c_api/local_cluster.h"
#include "worker/worker.h"

// From settings to a worker: over gRPC and ZeroMQ, or inside a local cluster.

namespace bdn {

// Settings as flags over the environment. InvalidArgument names the one that is wrong.
absl::StatusOr<Config> LoadWorkerConfig(const std::vector<std::string>& flags);

// `clock` is borrowed and outlives the worker.
absl::StatusOr<std::unique_ptr<Worker>> ConnectWorker(const Config& config, const Clock* clock);
absl::StatusOr<std::unique_ptr<Worker>> ConnectLocalWorker(const Config& config,
                                                           LocalCluster* cluster);

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_CONNECT_H_
