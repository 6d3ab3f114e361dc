#include "worker/host/worker_join.h"

#include <utility>

#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/host_and_pid.h"
#include "common/cluster/scheduler_client.h"
#include "common/transport/transport_factory.h"
#include "worker/pipeline/server_links.h"

namespace bdn {
namespace {

// Returns 0 for auto.
absl::StatusOr<int> ReadConnections(const Config& config) {
  if (config.Text("connections") == "auto") return 0;
  const absl::StatusOr<int> number = config.Int("connections", 1, ServerLinks::kMost);
  if (number.ok()) return number;
  return InvalidArgument("%s, or auto", number.status().message());
}

}  // namespace

absl::StatusOr<Worker::Options> ReadWorkerOptions(const Config& config) {
  Worker::Options options;
  options.join.job_id = config.Text("job-id");
  options.join.host = HostAndPid();
  BDN_ASSIGN_OR_RETURN(options.join.wanted_rank, config.Int("rank", -1, 1 << 16));
  BDN_ASSIGN_OR_RETURN(options.num_threads, config.Int("threads", 0, 1024));
  BDN_ASSIGN_OR_RETURN(options.max_bytes_in_flight, config.Bytes("max-bytes-in-flight"));
  BDN_ASSIGN_OR_RETURN(options.join_timeout, config.Duration("join-timeout"));
  BDN_ASSIGN_OR_RETURN(options.wait_timeout, config.Duration("wait-timeout"));
  BDN_ASSIGN_OR_RETURN(options.probe_interval, config.Duration("probe-interval"));
  BDN_ASSIGN_OR_RETURN(options.connections, ReadConnections(config));
  BDN_ASSIGN_OR_RETURN(options.stage_clock, ParseStageTimes(config.Text("stage-times")));
  BDN_ASSIGN_OR_RETURN(options.recorder, ReadRecorderOptions(config));
  BDN_ASSIGN_OR_RETURN(options.quality, ReadQualityOptions(config));
  options.history_file = config.Text("history-file");
  if (options.probe_interval < absl::Milliseconds(1)) {
    return InvalidArgument("setting probe-interval is %s: expected 1ms or more",
                           config.Text("probe-interval"));
  }
  return options;
}

absl::Status CheckSchedulerIsSet(const Config& config) {
  if (!config.Text("scheduler").empty()) return absl::OkStatus();
  return InvalidArgument(
      "no scheduler is set: start the program with `bandoneon run`, or set BANDONEON_SCHEDULER "
      "to the host:port that bandoneon-scheduler printed");
}

absl::StatusOr<std::unique_ptr<Worker>> JoinAsWorker(const Config& config,
                                                     const Worker::Options& options,
                                                     const Clock* clock, Registry* telemetry) {
  BDN_RETURN_IF_ERROR(CheckSchedulerIsSet(config));
  BDN_ASSIGN_OR_RETURN(const Credentials credentials, Credentials::Load(config, "worker"));
  BDN_RETURN_IF_ERROR(credentials.CheckMayAsk(config.Text("scheduler")));
  RouteGrpcLog();
  PrepareProcessForTransports();
  BDN_ASSIGN_OR_RETURN(auto control,
                       SchedulerClient::Create(config.Text("scheduler"), credentials, clock));
  BDN_ASSIGN_OR_RETURN(const TransportOptions transport_options,
                       ReadConnectorOptions(config, clock));
  // The transport over ZeroMQ uses all schemes at which servers listen. It must exist before the
  // servers are known, because the join shows its public key.
  BDN_ASSIGN_OR_RETURN(auto transport, MakeTransport("tcp", transport_options));
  return Worker::Create(options, clock, telemetry, std::move(control), std::move(transport));
}

}  // namespace bdn
