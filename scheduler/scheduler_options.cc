#include "scheduler/scheduler_options.h"

#include <limits>
#include <random>

#include "common/base/status.h"
#include "common/cluster/listen_address.h"
#include "common/cluster/table_spec.h"

namespace bdn {
namespace {

constexpr int64_t kMostNodes = 4096;
constexpr int64_t kMostTensors = int64_t{1} << 20;

std::string RandomJobId() {
  std::random_device random;
  return absl::StrFormat("job-%08x%08x", random(), random());
}

}  // namespace

absl::StatusOr<SchedulerOptions> ReadSchedulerOptions(const Config& config) {
  SchedulerOptions options;
  JobConfig& job = options.job.config;
  options.listen = config.Text("listen");
  options.port_file = config.Text("port-file");
  options.health_listen = config.Text("health-listen");
  options.metrics_listen = config.Text("metrics-listen");
  BDN_RETURN_IF_ERROR(CheckOptionalAddress("metrics-listen", options.metrics_listen));
  options.failure_file = config.Text("failure-file");
  BDN_ASSIGN_OR_RETURN(options.job.credentials, Credentials::Load(config, "scheduler"));
  job.job_id = config.Text("job-id").empty() ? RandomJobId() : config.Text("job-id");
  BDN_RETURN_IF_ERROR(CheckAddress(options.listen));
  BDN_RETURN_IF_ERROR(options.job.credentials.CheckMayListen("listen", options.listen));
  options.http_listen = config.Text("http-listen");
  options.http_port_file = config.Text("http-port-file");
  if (!options.http_listen.empty()) {
    BDN_RETURN_IF_ERROR(CheckAddress(options.http_listen));
    BDN_RETURN_IF_ERROR(
        options.job.credentials.CheckMayListenInClear("http-listen", options.http_listen));
    options.job.keeps_history = true;
  }
  BDN_RETURN_IF_ERROR(ParseLogLevel(config.Text("log-level"), &options.log_level));
  BDN_ASSIGN_OR_RETURN(options.exit_when_done, config.Bool("exit-when-done"));
  BDN_ASSIGN_OR_RETURN(options.drain_timeout, config.Duration("drain-timeout"));
  options.job.is_followed = !options.exit_when_done;
  BDN_ASSIGN_OR_RETURN(options.job.join_timeout, config.Duration("join-timeout"));
  BDN_ASSIGN_OR_RETURN(const int64_t workers, config.Int("workers", 1, kMostNodes));
  BDN_ASSIGN_OR_RETURN(const int64_t servers, config.Int("servers", 1, kMostNodes));
  job.num_workers = job.first_workers = static_cast<int>(workers);
  job.num_servers = static_cast<int>(servers);
  BDN_ASSIGN_OR_RETURN(const int64_t fewest, config.Int("min-workers", 0, kMostNodes));
  job.min_workers = static_cast<int>(fewest);
  BDN_ASSIGN_OR_RETURN(const int64_t most, config.Int("max-workers", 0, kMostNodes));
  if (most != 0 && most < workers) {
    return InvalidArgument("max-workers is %d: expected 0 (as workers) or at least workers, %d",
                           most, workers);
  }
  if (most > workers) {
    job.num_workers = static_cast<int>(most);
    // All with which the job has begun are needed, where nothing else is said.
    if (fewest == 0) job.min_workers = job.first_workers;
  }
  BDN_ASSIGN_OR_RETURN(job.stuck_timeout, config.Duration("stuck-timeout"));
  BDN_ASSIGN_OR_RETURN(job.link_timeout, config.Duration("link-timeout"));
  options.journal = config.Text("journal");
  options.history_file = config.Text("history-file");
  BDN_ASSIGN_OR_RETURN(const absl::Duration patience, config.Duration("scheduler-timeout"));
  if (!options.journal.empty()) job.scheduler_timeout = patience;
  BDN_ASSIGN_OR_RETURN(const int64_t replayed, config.Int("replay-steps", 0, kMostReplaySteps));
  // With its only server such a job ends, so workers need keep nothing for another.
  const bool may_go_on = servers > 1 || !options.journal.empty();
  job.replay_steps = may_go_on ? static_cast<uint32_t>(replayed) : 0;
  BDN_ASSIGN_OR_RETURN(const int64_t seed,
                       config.Int("seed", 0, std::numeric_limits<int64_t>::max()));
  job.run_seed = static_cast<uint64_t>(seed);
  BDN_ASSIGN_OR_RETURN(job.partition_bytes, config.Bytes("partition-bytes"));
  BDN_ASSIGN_OR_RETURN(job.fusion_bytes, config.Bytes("fusion-bytes"));
  BDN_ASSIGN_OR_RETURN(job.min_compress_bytes, config.Bytes("min-compress-bytes"));
  BDN_ASSIGN_OR_RETURN(const int64_t buckets, config.Int("row-buckets", 0, kMaxRowBuckets));
  job.row_buckets = static_cast<uint32_t>(buckets);
  BDN_ASSIGN_OR_RETURN(options.job.limits.max_job_bytes, config.Bytes("max-job-bytes"));
  BDN_ASSIGN_OR_RETURN(const int64_t tensors, config.Int("max-tensors", 1, kMostTensors));
  options.job.limits.max_tensors = static_cast<uint64_t>(tensors);
  BDN_ASSIGN_OR_RETURN(options.job.limits.max_name_bytes, config.Bytes("max-name-bytes"));
  RequestLimits& requests = options.job.request_limits;
  BDN_ASSIGN_OR_RETURN(requests.max_request_bytes, config.Bytes("max-request-bytes"));
  BDN_ASSIGN_OR_RETURN(requests.max_declaration_bytes, config.Bytes("max-declaration-bytes"));
  BDN_ASSIGN_OR_RETURN(job.heartbeat_interval, config.Duration("heartbeat-interval"));
  BDN_ASSIGN_OR_RETURN(job.lease_timeout, config.Duration("lease-timeout"));
  BDN_RETURN_IF_ERROR(CheckJobOptions(options.job));
  return options;
}

}  // namespace bdn
