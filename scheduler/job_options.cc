#include "scheduler/job_options.h"

#include "common/base/status.h"

namespace bdn {
namespace {

constexpr int kMaxNodes = 4096;  // of a role
constexpr uint64_t kMostTensors = uint64_t{1} << 20;

}  // namespace

absl::Status CheckText(const char* what, const std::string& text) {
  if (text.size() <= kMaxNameBytes) return absl::OkStatus();
  return InvalidArgument("%s '%s...' has %d bytes, more than %d", what, text.substr(0, 32),
                         text.size(), kMaxNameBytes);
}

absl::Status CheckJobOptions(const JobOptions& options) {
  const JobConfig& config = options.config;
  BDN_RETURN_IF_ERROR(CheckText("job-id", config.job_id));
  if (config.num_workers < 1 || config.num_workers > kMaxNodes) {
    return InvalidArgument("workers is %d: expected 1 to %d", config.num_workers, kMaxNodes);
  }
  if (config.num_servers < 1 || config.num_servers > kMaxNodes) {
    return InvalidArgument("servers is %d: expected 1 to %d", config.num_servers, kMaxNodes);
  }
  constexpr uint64_t kLeastPartition = 4096;
  constexpr uint64_t kMostPartition = uint64_t{1} << 30;
  if (config.partition_bytes < kLeastPartition || config.partition_bytes > kMostPartition) {
    return InvalidArgument("partition-bytes is %d: expected %d to %d", config.partition_bytes,
                           kLeastPartition, kMostPartition);
  }
  if (options.limits.max_job_bytes == 0) return InvalidArgument("max-job-bytes is 0");
  if (options.limits.max_tensors < 1 || options.limits.max_tensors > kMostTensors) {
    return InvalidArgument("max-tensors is %d: expected 1 to %d", options.limits.max_tensors,
                           kMostTensors);
  }
  if (config.heartbeat_interval < absl::Milliseconds(1)) {
    return InvalidArgument("heartbeat-interval is %s: expected at least 1ms",
                           absl::FormatDuration(config.heartbeat_interval));
  }
  if (config.lease_timeout < 2 * config.heartbeat_interval) {
    return InvalidArgument("lease-timeout (%s) must be at least twice heartbeat-interval (%s)",
                           absl::FormatDuration(config.lease_timeout),
                           absl::FormatDuration(config.heartbeat_interval));
  }
  return absl::OkStatus();
}

}  // namespace bdn
