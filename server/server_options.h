#ifndef BANDONEON_SERVER_SERVER_OPTIONS_H_
#define BANDONEON_SERVER_SERVER_OPTIONS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "common/transport/transport_options.h"
#include "server/server.h"

namespace bdn {

// The settings of the server daemon, checked.
struct ServerOptions {
  Server::Options server;
  std::string scheduler;       // host:port
  std::string health_listen;   // empty: no health service
  std::string metrics_listen;  // empty: no metrics
  std::string metrics_file;    // empty: none
  bool exit_when_done = true;
  absl::Duration drain_timeout;
  TransportOptions transport;  // without its clock, which the daemon sets
  LogLevel log_level = LogLevel::kInfo;
};

// Reads the settings. `config` was made from ServerSettings(). InvalidArgument names the setting
// that is wrong or missing.
absl::StatusOr<ServerOptions> ReadServerOptions(const Config& config);

}  // namespace bdn

#endif  // BANDONEON_SERVER_SERVER_OPTIONS_H_
