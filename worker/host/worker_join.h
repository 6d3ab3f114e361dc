#ifndef BANDONEON_WORKER_HOST_WORKER_JOIN_H_
#define BANDONEON_WORKER_HOST_WORKER_JOIN_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/telemetry/registry.h"
#include "worker/worker.h"

// Makes a worker over gRPC and ZeroMQ from settings, in a process that trains or in a host daemon.

namespace bdn {

// Reads the settings of a worker. InvalidArgument names the setting that is wrong.
absl::StatusOr<Worker::Options> ReadWorkerOptions(const Config& config);
// Checks that setting `scheduler` is there. InvalidArgument says how to set it.
absl::Status CheckSchedulerIsSet(const Config& config);
// Joins the job of the setting `scheduler` and waits until all nodes have joined.
absl::StatusOr<std::unique_ptr<Worker>> JoinAsWorker(const Config& config,
                                                     const Worker::Options& options,
                                                     const Clock* clock, Registry* telemetry);

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_WORKER_JOIN_H_
