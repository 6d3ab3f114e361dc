// bandoneon-server: holds a shard of the keys, sums what the workers push, and answers.

#include <memory>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/daemon.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/settings.h"
#include "common/telemetry/job_report.h"
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

// Starts the server and waits for the job's end, until a signal on `signal_fd`.
ServedJob ServeUntil(int signal_fd, Server* server, ControlPlane* control, HealthServer* health) {
  ServedJob served;
  served.signalled = RunUntilSignal(
      signal_fd,
      [&] {
        served.result = server->Start();
        served.started = served.result.ok();
        if (!served.started) return;
        if (health != nullptr) health->SetServing(true);
        served.result = server->Wait();
      },
      [&] {
        control->Close();
        server->Stop();
      });
  if (health != nullptr) health->SetServing(false);
  if (served.signalled) {
    served.result = absl::OkStatus();
  } else if (served.started && served.result.ok()) {
    // The job is done: part in peace, so that the scheduler need not look for us.
    (void)control->Leave(absl::OkStatus(), absl::Seconds(2));
  }
  return served;
}

// One job, with a transport, keys and memory of its own: nothing of it is left for the next.
absl::StatusOr<ServedJob> ServeJob(const ServerOptions& options, int signal_fd, const Clock* clock,
                                   HealthServer* health) {
  BDN_ASSIGN_OR_RETURN(
      auto control, SchedulerClient::Create(options.scheduler, options.server.credentials, clock));
  TransportOptions transport_options = options.transport;
  transport_options.clock = clock;
  BDN_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                       MakeTransport(options.server.listen, transport_options));
  Registry telemetry;
  Server server(options.server, &telemetry, control.get(), transport.get());
  ServedJob served = ServeUntil(signal_fd, &server, control.get(), health);
  ReportJob(telemetry, options.metrics_file);
  if (!served.result.ok()) LogError("%s", served.result.message());
  return served;
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
    BDN_ASSIGN_OR_RETURN(const ServedJob served,
                         ServeJob(options, signal_fd, &clock, health.get()));
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
