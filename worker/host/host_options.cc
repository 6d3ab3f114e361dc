#include "worker/host/host_options.h"

#include <algorithm>
#include <cmath>

#include "common/base/processors.h"
#include "common/base/status.h"
#include "common/cluster/credentials.h"
#include "common/cluster/listen_address.h"
#include "common/cluster/membership.h"
#include "common/transport/transport_factory.h"
#include "worker/host/worker_join.h"

namespace bdn {
namespace {

// A host's processors belong to its training processes, so the daemon by default uses only this
// part of those that it may use.
constexpr double kPartForCodecs = 0.25;
constexpr int kMostThreadsUnasked = 8;

}  // namespace

absl::StatusOr<HostOptions> ReadHostOptions(const Config& config) {
  HostOptions options;
  BDN_RETURN_IF_ERROR(ParseLogLevel(config.Text("log-level"), &options.log_level));
  BDN_RETURN_IF_ERROR(CheckSchedulerIsSet(config));
  if (config.Text("attach").empty()) {
    return InvalidArgument(
        "setting attach is empty: say where processes of this host attach, e.g. unix:@gpt-7");
  }
  BDN_ASSIGN_OR_RETURN(options.address, ParseHostAddress(config.Text("attach")));
  BDN_ASSIGN_OR_RETURN(options.server.processes, config.Int("processes", 1, kMostProcesses));
  BDN_ASSIGN_OR_RETURN(options.worker, ReadWorkerOptions(config));
  const auto processors = ReadProcessors(config.Text("cpus"));
  if (!processors.ok()) return Annotate(processors.status(), "setting cpus");
  options.processors = *processors;
  if (options.worker.num_threads == 0) {
    const double usable =
        std::min(UsableProcessors(), static_cast<double>(options.processors.size()));
    options.worker.num_threads =
        std::clamp(static_cast<int>(std::floor(usable * kPartForCodecs)), 1, kMostThreadsUnasked);
  }
  options.worker.join.processes = options.server.processes;
  options.server.job_id = config.Text("job-id");
  options.server.attach_timeout = options.worker.join_timeout;
  BDN_RETURN_IF_ERROR(Credentials::Load(config, "worker").status());
  BDN_RETURN_IF_ERROR(ReadConnectorOptions(config, nullptr).status());
  options.health_listen = config.Text("health-listen");
  options.metrics_listen = config.Text("metrics-listen");
  BDN_RETURN_IF_ERROR(CheckOptionalAddress("metrics-listen", options.metrics_listen));
  options.metrics_file = config.Text("metrics-file");
  BDN_ASSIGN_OR_RETURN(options.exit_when_done, config.Bool("exit-when-done"));
  BDN_ASSIGN_OR_RETURN(options.drain_timeout, config.Duration("drain-timeout"));
  return options;
}

}  // namespace bdn
