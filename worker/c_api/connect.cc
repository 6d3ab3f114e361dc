#include "worker/c_api/connect.h"

#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/host_and_pid.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/settings.h"
#include "common/cluster/status_fetch.h"
#include "common/transport/throttled.h"
#include "common/transport/transport_factory.h"
#include "worker/worker.h"

namespace bdn {
namespace {

absl::StatusOr<Worker::Options> ReadOptions(const Config& config) {
  Worker::Options options;
  options.join.job_id = config.Text("job-id");
  options.join.host = HostAndPid();
  BDN_ASSIGN_OR_RETURN(options.join.wanted_rank, config.Int("rank", -1, 1 << 16));
  BDN_ASSIGN_OR_RETURN(options.num_threads, config.Int("threads", 1, 1024));
  BDN_ASSIGN_OR_RETURN(options.max_bytes_in_flight, config.Bytes("max-bytes-in-flight"));
  BDN_ASSIGN_OR_RETURN(options.join_timeout, config.Duration("join-timeout"));
  BDN_ASSIGN_OR_RETURN(options.wait_timeout, config.Duration("wait-timeout"));
  BDN_ASSIGN_OR_RETURN(options.probe_interval, config.Duration("probe-interval"));
  BDN_ASSIGN_OR_RETURN(options.stage_clock, ParseStageTimes(config.Text("stage-times")));
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

}  // namespace

absl::StatusOr<Config> LoadWorkerConfig(const std::vector<std::string>& flags) {
  BDN_ASSIGN_OR_RETURN(Config config,
                       Config::Load(WorkerSettings(), flags, ReadEnvironment(), AllSettings()));
  LogLevel level;
  BDN_RETURN_IF_ERROR(ParseLogLevel(config.Text("log-level"), &level));
  BDN_RETURN_IF_ERROR(ReadOptions(config).status());
  return config;
}

absl::StatusOr<std::string> AskStatus(const std::vector<std::string>& flags,
                                      absl::Duration timeout) {
  BDN_ASSIGN_OR_RETURN(const Config config,
                       Config::Load(WorkerSettings(), flags, ReadEnvironment(), AllSettings()));
  BDN_ASSIGN_OR_RETURN(const Credentials credentials, Credentials::Load(config, ""));
  const std::string& address = config.Text("scheduler");
  BDN_RETURN_IF_ERROR(CheckSchedulerIsSet(config));
  BDN_RETURN_IF_ERROR(credentials.CheckMayAsk(address));
  RouteGrpcLog();
  return FetchStatusJson(address, credentials, timeout);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectWorker(const Config& config,
                                                      ClientContext* context) {
  const Clock* clock = &context->clock;
  BDN_RETURN_IF_ERROR(CheckSchedulerIsSet(config));
  BDN_ASSIGN_OR_RETURN(const Worker::Options options, ReadOptions(config));
  BDN_ASSIGN_OR_RETURN(const Credentials credentials, Credentials::Load(config, "worker"));
  BDN_RETURN_IF_ERROR(credentials.CheckMayAsk(config.Text("scheduler")));
  RouteGrpcLog();
  PrepareProcessForTransports();
  BDN_ASSIGN_OR_RETURN(auto control,
                       SchedulerClient::Create(config.Text("scheduler"), credentials, clock));
  BDN_ASSIGN_OR_RETURN(const TransportOptions transport_options,
                       ReadConnectorOptions(config, clock));
  // ZeroMQ's, which speaks all schemes that servers listen at. It must be there before they are
  // known: the join shows its key.
  BDN_ASSIGN_OR_RETURN(auto transport, MakeTransport("tcp", transport_options));
  return Worker::Create(options, clock, &context->telemetry, std::move(control),
                        std::move(transport));
}

absl::StatusOr<std::unique_ptr<Client>> ConnectLocalWorker(const Config& config,
                                                           ClientContext* context,
                                                           LocalCluster* cluster) {
  BDN_ASSIGN_OR_RETURN(const Worker::Options options, ReadOptions(config));
  BDN_ASSIGN_OR_RETURN(const double link, config.Rate("link"));
  return Worker::Create(options, &context->clock, &context->telemetry, cluster->Connect(),
                        MakeThrottled(cluster->MakeTransport(), link, &context->clock));
}

}  // namespace bdn
