// bandoneon-server: holds a shard of the keys, sums what the workers push, and answers.

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/daemon.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/settings.h"
#include "common/transport/transport_factory.h"
#include "server/server.h"
#include "server/server_options.h"

namespace bdn {
namespace {

constexpr char kUsage[] =
    "bandoneon-server: sums what the workers push of its share of the model, and answers.\n"
    "\n"
    "usage: bandoneon-server --scheduler HOST:PORT [--check-config] [--help] [--version] [settings]\n"
    "\n"
    "examples:\n"
    "  bandoneon-server --scheduler 10.0.0.1:7000 --listen tcp://10.0.0.2:7100 \\\n"
    "    --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem   # bandoneon certs makes them\n"
    "  BANDONEON_SCHEDULER=127.0.0.1:7000 bandoneon-server --shards 4\n"
    "  bandoneon-server --scheduler 127.0.0.1:7000 --exit-when-done=false   # as its scheduler\n"
    "  bandoneon-server --scheduler 127.0.0.1:7000 --check-config\n"
    "\n"
    "Ends with 0 when all workers have left or on SIGTERM, with 1 when the job failed, with 2 when it\n"
    "could not start. With --exit-when-done=false it joins the next job instead, until a signal comes.\n"
    "\n"
    "settings:\n";

struct Served {
  absl::Status result;
  bool started = false;  // the job had begun
  bool signalled = false;
};

// Starts the server and waits for the job's end, until a signal on `signal_fd`.
Served ServeUntil(int signal_fd, Server* server, ControlPlane* control, HealthServer* health) {
  Served served;
  absl::Status& result = served.result;
  bool& started = served.started;
  const int over_fd = eventfd(0, EFD_CLOEXEC);
  std::thread job([&] {
    result = server->Start();
    started = result.ok();
    if (started) {
      if (health != nullptr) health->SetServing(true);
      result = server->Wait();
    }
    const uint64_t one = 1;
    (void)!write(over_fd, &one, sizeof(one));
  });
  pollfd fds[] = {{signal_fd, POLLIN, 0}, {over_fd, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) continue;  // interrupted
  served.signalled = fds[1].revents == 0;
  if (served.signalled) {
    LogInfo("ending on a signal");
    control->Close();
    server->Stop();
  }
  job.join();
  close(over_fd);
  if (health != nullptr) health->SetServing(false);
  if (served.signalled) {
    result = absl::OkStatus();
    return served;
  }
  // The job is done: part in peace, so that the scheduler need not look for us.
  if (started && result.ok()) (void)control->Leave(absl::OkStatus(), absl::Seconds(2));
  return served;
}

// One job, with a transport, keys and memory of its own: nothing of it is left for the next.
absl::StatusOr<Served> ServeJob(const ServerOptions& options, int signal_fd, const Clock* clock,
                                HealthServer* health) {
  BDN_ASSIGN_OR_RETURN(
      auto control, SchedulerClient::Create(options.scheduler, options.server.credentials, clock));
  TransportOptions transport_options = options.transport;
  transport_options.clock = clock;
  BDN_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                       MakeTransport(options.server.listen, transport_options));
  Registry telemetry;
  Server server(options.server, &telemetry, control.get(), transport.get());
  Served served = ServeUntil(signal_fd, &server, control.get(), health);
  const std::vector<Sample> counted = telemetry.Collect();
  if (!counted.empty()) LogInfo("%s", ToText(counted));
  if (!options.metrics_file.empty()) {
    std::ofstream(options.metrics_file) << ToJson(counted) << "\n";
  }
  if (!served.result.ok()) LogError("%s", served.result.message());
  return served;
}

// Whether another job may end otherwise. What was wrong before one began, and was not that others
// did not come, is wrong with this server.
bool MayServeNext(const Served& served) {
  if (served.signalled) return false;
  const absl::Status& result = served.result;
  return served.started || absl::IsAborted(result) || absl::IsUnavailable(result) ||
         absl::IsDeadlineExceeded(result);
}

absl::StatusOr<int> Serve(const Config& config) {
  BDN_ASSIGN_OR_RETURN(const ServerOptions options, ReadServerOptions(config));
  InitLog(options.log_level, "server");
  const int signal_fd = BlockEndSignals();
  RouteGrpcLog();
  PrepareProcessForTransports();
  const SteadyClock clock;
  std::unique_ptr<HealthServer> health;
  if (!options.health_listen.empty()) {
    BDN_ASSIGN_OR_RETURN(health, HealthServer::Start(options.health_listen));
    LogInfo("health service at port %d", health->port());
  }
  for (;;) {
    BDN_ASSIGN_OR_RETURN(const Served served, ServeJob(options, signal_fd, &clock, health.get()));
    if (options.exit_when_done || !MayServeNext(served)) return served.result.ok() ? 0 : 1;
    LogInfo("ready for the next job");
  }
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  return bdn::RunDaemon(
      {.name = "bandoneon-server",
       .usage = bdn::kUsage,
       .version = absl::StrFormat("%s, wire version %d", BDN_VERSION, bdn::kWireVersion),
       .settings = bdn::ServerSettings(),
       .elsewhere = bdn::AllSettings(),
       .check = [](const auto& config) { return bdn::ReadServerOptions(config).status(); },
       .serve = bdn::Serve},
      {argv + 1, argv + argc});
}
