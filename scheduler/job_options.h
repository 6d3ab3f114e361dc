#ifndef BANDONEON_SCHEDULER_JOB_OPTIONS_H_
#define BANDONEON_SCHEDULER_JOB_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/credentials.h"

namespace bdn {

// The limits on what a job may declare. The setting of each has its name.
struct DeclarationLimits {
  uint64_t max_job_bytes = uint64_t{256} << 30;  // of all tensors, as TensorBytes
  uint64_t max_tensors = uint64_t{1} << 20;
  uint64_t max_name_bytes = 255;  // of each name, spec, rule and address
};

// The limits on requests to a scheduler.
struct RequestLimits {
  uint64_t max_request_bytes = uint64_t{64} << 10;
  uint64_t max_declaration_bytes = uint64_t{4} << 20;  // of one part of a declaration
};

// The options of one job.
struct JobOptions {
  JobConfig config;
  DeclarationLimits limits;
  RequestLimits request_limits;
  Credentials credentials;  // asked of every node that joins
  // Given to every node that has joined; JobHost makes one where it is empty.
  std::string data_secret;
  absl::Duration join_timeout = absl::InfiniteDuration();
  // The rest of a lease once the node's connection has broken.
  absl::Duration broken_connection_grace = absl::Seconds(2);
  // Whether another job of the same nodes comes after this one. If so, a node that wants to join
  // meanwhile is asked to come again, and the time to join begins with the first worker.
  bool is_followed = false;
  bool keeps_history = false;  // for the status page
  bool has_leases = true;      // false: nodes send no heartbeats, and only Lost loses them
};

// Checks the options. InvalidArgument names the setting that is out of range or contradicts
// another.
absl::Status CheckJobOptions(const JobOptions& options);

// Returns InvalidArgument where a text from outside has a NUL or is longer than the setting
// max-name-bytes allows; `what` says which text it is.
absl::Status CheckText(const DeclarationLimits& limits, const char* what, const std::string& text);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_OPTIONS_H_
