#include "scheduler/job_options.h"

#include "absl/strings/escaping.h"
#include "common/base/status.h"
#include "common/cluster/table_spec.h"

namespace bdn {
namespace {

constexpr int kMaxNodes = 4096;  // of a role
constexpr uint64_t kMostTensors = uint64_t{1} << 20;
constexpr size_t kMaxJobIdBytes = 255;  // the data plane's hello has room for no more

absl::Status CheckRange(const char* setting, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgument("%s is %d: expected %d to %d", setting, value, least, most);
}

}  // namespace

absl::Status CheckText(const DeclarationLimits& limits, const char* what, const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    return InvalidArgument("%s '%s' contains NUL", what, absl::CHexEscape(text.substr(0, 32)));
  }
  if (text.size() <= limits.max_name_bytes) return absl::OkStatus();
  return InvalidArgument(
      "%s '%s...' has %d bytes, more than %d: make it shorter, or raise max-name-bytes of the "
      "scheduler",
      what, text.substr(0, 32), text.size(), limits.max_name_bytes);
}

absl::Status CheckJobOptions(const JobOptions& options) {
  const JobConfig& config = options.config;
  if (config.job_id.size() > kMaxJobIdBytes) {
    return InvalidArgument("job-id has %d bytes: expected at most %d", config.job_id.size(),
                           kMaxJobIdBytes);
  }
  if (config.num_workers < 1 || config.num_workers > kMaxNodes) {
    return InvalidArgument("workers is %d: expected 1 to %d", config.num_workers, kMaxNodes);
  }
  if (config.num_servers < 1 || config.num_servers > kMaxNodes) {
    return InvalidArgument("servers is %d: expected 1 to %d", config.num_servers, kMaxNodes);
  }
  if (config.first_workers < 0 || config.first_workers > config.num_workers) {
    return InvalidArgument("workers is %d: expected 1 to %d, which is max-workers",
                           config.first_workers, config.num_workers);
  }
  const int first = config.NumFirstWorkers();
  if (config.min_workers < 0 || config.min_workers > first) {
    return InvalidArgument("min-workers is %d: expected 0 (all) to %d, the number of workers",
                           config.min_workers, first);
  }
  if (first < config.num_workers && config.min_workers == 0) {
    return InvalidArgument("min-workers is 0 (all) in a job that begins with %d of %d workers",
                           first, config.num_workers);
  }
  if (config.stuck_timeout < absl::ZeroDuration()) {
    return InvalidArgument("stuck-timeout is %s: expected 0s (never) or more",
                           absl::FormatDuration(config.stuck_timeout));
  }
  if (config.link_timeout < absl::ZeroDuration()) {
    return InvalidArgument("link-timeout is %s: expected 0s (never) or more",
                           absl::FormatDuration(config.link_timeout));
  }
  if (config.scheduler_timeout < absl::ZeroDuration()) {
    return InvalidArgument("scheduler-timeout is %s: expected 0s or more",
                           absl::FormatDuration(config.scheduler_timeout));
  }
  if (config.replay_steps > kMostReplaySteps) {
    return InvalidArgument("replay-steps is %d: expected 0 (none) to %d", config.replay_steps,
                           kMostReplaySteps);
  }
  BDN_RETURN_IF_ERROR(CheckRange("partition-bytes", config.partition_bytes, 4096, 1 << 30));
  if (config.row_buckets != 0 && !IsRowBuckets(config.row_buckets)) {
    return InvalidArgument("row-buckets is %d: expected 0 (by the servers) or a power of two to %d",
                           config.row_buckets, kMaxRowBuckets);
  }
  if (options.limits.max_job_bytes == 0) return InvalidArgument("max-job-bytes is 0");
  const DeclarationLimits& limits = options.limits;
  BDN_RETURN_IF_ERROR(CheckRange("max-tensors", limits.max_tensors, 1, kMostTensors));
  BDN_RETURN_IF_ERROR(CheckRange("max-name-bytes", limits.max_name_bytes, 64, kMaxNameBytes));
  // The least values: requests of nodes with names as long as they may be must fit.
  const RequestLimits& requests = options.request_limits;
  BDN_RETURN_IF_ERROR(
      CheckRange("max-request-bytes", requests.max_request_bytes, 32 << 10, 4 << 20));
  BDN_RETURN_IF_ERROR(
      CheckRange("max-declaration-bytes", requests.max_declaration_bytes, 512 << 10, 64 << 20));
  if (config.heartbeat_interval < absl::Milliseconds(1)) {
    return InvalidArgument("heartbeat-interval is %s: expected at least 1ms",
                           absl::FormatDuration(config.heartbeat_interval));
  }
  // One lost heartbeat must not end a lease.
  if (config.lease_timeout < 2 * config.heartbeat_interval) {
    return InvalidArgument("lease-timeout (%s) must be at least twice heartbeat-interval (%s)",
                           absl::FormatDuration(config.lease_timeout),
                           absl::FormatDuration(config.heartbeat_interval));
  }
  return absl::OkStatus();
}

}  // namespace bdn
