#ifndef BANDONEON_WORKER_HOST_HOST_OPTIONS_H_
#define BANDONEON_WORKER_HOST_HOST_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "worker/host/host_address.h"
#include "worker/host/host_server.h"
#include "worker/worker.h"

namespace bdn {

// The settings of bandoneon-worker, the host daemon, checked.
struct HostOptions {
  HostAddress address;
  HostServer::Options server;
  Worker::Options worker;
  std::vector<int> processors;  // the processors on which it runs
  std::string metrics_file;
  std::string health_listen;   // empty: no health service
  std::string metrics_listen;  // empty: no metrics
  bool exit_when_done = true;
  absl::Duration drain_timeout;
  LogLevel log_level = LogLevel::kInfo;
};

// Reads the settings. `config` was made from HostSettings(). InvalidArgument names the setting that
// is wrong or missing.
absl::StatusOr<HostOptions> ReadHostOptions(const Config& config);

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_OPTIONS_H_
