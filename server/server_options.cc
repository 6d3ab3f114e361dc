#include "server/server_options.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/cluster/host_and_pid.h"
#include "common/cluster/listen_address.h"
#include "common/cluster/settings.h"

namespace bdn {
namespace {

std::string PortOf(const std::string& address) {
  return address.substr(address.find_last_of(':') + 1);
}

}  // namespace

absl::StatusOr<ServerOptions> ReadServerOptions(const Config& config) {
  ServerOptions options;
  options.scheduler = config.Text("scheduler");
  if (options.scheduler.empty()) {
    return InvalidArgument(
        "setting scheduler is missing: give --scheduler HOST:PORT, as bandoneon-scheduler printed "
        "it");
  }
  options.health_listen = config.Text("health-listen");
  options.metrics_listen = config.Text("metrics-listen");
  BDN_RETURN_IF_ERROR(CheckOptionalAddress("metrics-listen", options.metrics_listen));
  options.metrics_file = config.Text("metrics-file");
  options.server.history_file = config.Text("history-file");
  BDN_ASSIGN_OR_RETURN(options.exit_when_done, config.Bool("exit-when-done"));
  BDN_ASSIGN_OR_RETURN(options.drain_timeout, config.Duration("drain-timeout"));
  options.server.listen = config.Text("listen");
  options.server.advertise = config.Text("advertise");
  options.server.join.job_id = config.Text("job-id");
  BDN_ASSIGN_OR_RETURN(options.server.credentials, Credentials::Load(config, "server"));
  BDN_RETURN_IF_ERROR(options.server.credentials.CheckMayListen("listen", options.server.listen));
  BDN_RETURN_IF_ERROR(options.server.credentials.CheckMayAsk(options.scheduler));
  if (IsWildcardAddress(options.server.listen) && options.server.advertise.empty()) {
    const std::string port = PortOf(options.server.listen);
    return InvalidArgument(
        "listen is %s, which workers cannot connect to: %sset advertise to the address that they "
        "can, e.g. --advertise tcp://10.0.0.2:%s",
        options.server.listen, port == "0" ? "choose a port, and " : "",
        port == "0" ? "PORT" : port);
  }
  if (IsWildcardAddress(options.server.advertise)) {
    return InvalidArgument(
        "advertise is %s, which workers cannot connect to: expected the address of this host, e.g. "
        "tcp://10.0.0.2:7100",
        options.server.advertise);
  }
  options.server.join.host = HostAndPid();
  BDN_ASSIGN_OR_RETURN(options.server.join.wanted_rank, config.Int("rank", -1, 1 << 16));
  BDN_ASSIGN_OR_RETURN(const int64_t shards, config.Int("shards", 0, 1024));
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  options.server.num_shards =
      shards > 0 ? static_cast<int>(shards) : std::clamp(processors / 2, 1, 8);
  BDN_ASSIGN_OR_RETURN(options.server.join_timeout, config.Duration("join-timeout"));
  // The next job begins when its workers come, at any time.
  if (!options.exit_when_done) options.server.join_timeout = absl::InfiniteDuration();
  BDN_ASSIGN_OR_RETURN(options.transport, ReadListenerOptions(config, nullptr));
  options.server.max_bytes_waiting = options.transport.max_bytes_queued;
  options.server.max_frame_bytes = options.transport.max_frame_bytes;
  BDN_ASSIGN_OR_RETURN(options.server.max_bytes_in_flight, config.Bytes("max-bytes-in-flight"));
  if (config.Text("max-bytes").empty()) {
    options.server.max_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                               static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  } else {
    BDN_ASSIGN_OR_RETURN(options.server.max_bytes, config.Bytes("max-bytes"));
  }
  BDN_ASSIGN_OR_RETURN(options.server.stage_clock, ParseStageTimes(config.Text("stage-times")));
  BDN_ASSIGN_OR_RETURN(options.server.recorder, ReadRecorderOptions(config));
  // The default is chosen by the machine, so a recording could not tell it otherwise.
  options.server.recorder.settings.emplace_back("shards", absl::StrCat(options.server.num_shards));
  BDN_ASSIGN_OR_RETURN(options.server.quality, ReadQualityOptions(config));
  // An advertised address is reached over another way than the address listened at, which may cross
  // a network, so links are encrypted unless a setting says otherwise.
  if (!options.transport.security.has_value() && !options.server.advertise.empty()) {
    options.transport.security = LinkSecurity::kEncrypted;
  }
  BDN_RETURN_IF_ERROR(ParseLogLevel(config.Text("log-level"), &options.log_level));
  return options;
}

}  // namespace bdn
