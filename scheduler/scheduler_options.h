#ifndef BANDONEON_SCHEDULER_SCHEDULER_OPTIONS_H_
#define BANDONEON_SCHEDULER_SCHEDULER_OPTIONS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "scheduler/job.h"

namespace bdn {

// The settings of the scheduler's daemon, checked.
struct SchedulerOptions {
  std::string listen;
  std::string port_file;
  std::string failure_file;
  std::string health_listen;   // empty: no health service
  std::string metrics_listen;  // empty: no metrics
  std::string http_listen;     // empty: no status page
  std::string http_port_file;
  std::string journal;       // the directory; empty: none
  std::string history_file;  // empty: none
  JobOptions job;
  bool exit_when_done = true;
  absl::Duration drain_timeout;
  LogLevel log_level = LogLevel::kInfo;
};

// Reads the settings; `config` is of SchedulerSettings(). A job without a name gets one that no
// other job has. InvalidArgument names the setting that is wrong or contradicts another.
absl::StatusOr<SchedulerOptions> ReadSchedulerOptions(const Config& config);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_SCHEDULER_OPTIONS_H_
