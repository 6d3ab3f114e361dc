// bandoneon-server: holds a shard of the keys, sums what the workers push, and answers.

#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/daemon.h"
#include "common/base/descriptors.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/scheduler_client.h"
#include "common/cluster/settings.h"
#include "common/http/metrics_page.h"
#include "common/telemetry/job_report.h"
#include "common/transport/transport_factory.h"
#include "kernels/kernel_targets.h"
#include "server/server.h"
#include "server/server_options.h"

namespace bdn {
namespace {

constexpr char kUsage[] =
    "bandoneon-server: sums what the workers push of its share of the model, and answers.\n"
    "\n"
    "usage: bandoneon-server --scheduler HOST:PORT [--check-config] [--help] [--version] "
    "[settings]\n"
    "\n"
    "examples:\n"
    "  bandoneon-server --scheduler 10.0.0.1:7000 --listen tcp://10.0.0.2:7100 \\\n"
    "    --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem   # bandoneon certs makes them\n"
    "  BANDONEON_SCHEDULER=127.0.0.1:7000 bandoneon-server --shards 4\n"
    "  bandoneon-server --scheduler 127.0.0.1:7000 --exit-when-done=false   # as its scheduler\n"
    "  bandoneon-server --scheduler 127.0.0.1:7000 --check-config\n"
    "\n"
    "Ends with 0 when all workers have left or on SIGTERM, with 1 when the job failed, with 2 "
    "when it\n"
    "could not start. With --exit-when-done=false it joins the next job instead, until a signal "
    "comes. A\n"
    "second signal ends it at once.\n"
    "\n"
    "settings:\n";

constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

// The state of the job, shared by main() and the job's thread: whether it has begun. Health says
// "serving" from then on, until a signal comes.
class Progress {
 public:
  explicit Progress(HealthServer* health) : health_(health) {}
  void Start() {
    MutexLock lock(&mu_);
    started_ = true;
    if (health_ != nullptr && !ending_) health_->SetServing(true);
  }
  // Ends health's "serving" for good, and returns whether the job had begun.
  bool End() {
    MutexLock lock(&mu_);
    ending_ = true;
    if (health_ != nullptr) health_->SetServing(false);
    return started_;
  }

 private:
  HealthServer* const health_;
  Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
};

// Lets others answer for this server's keys, where they can, and returns whether they do. The rows
// of tables are nowhere else.
bool HandOver(const MainLoop& main, const Server& server, ControlPlane* control) {
  if (server.HasTables()) return false;
  const absl::Status left =
      control->TryToLeave(WhyStopped("bandoneon-server", main), kLeaveTimeout);
  if (left.ok()) {
    LogInfo("has left the job, which goes on: others answer for this server's keys");
  } else {
    LogInfo("cannot leave the job that runs: %s", left.message());
  }
  return left.ok();
}

// Starts the server and waits for the job's end. After a signal the job goes on without this
// server, if it can. Else a job that has begun has the time `drain_timeout` to end by itself; then
// the scheduler is told which node went, and why.
ServedJob ServeUntil(MainLoop* main, absl::Duration drain_timeout, Server* server,
                     const Registry* telemetry, ControlPlane* control, HealthServer* health) {
  ServedJob served;
  Progress progress(health);
  const int over_fd = eventfd(0, EFD_CLOEXEC);
  std::thread job([&] {
    try {
      served.result = server->Start();
    } catch (const std::system_error& error) {  // a thread could not start
      served.result = ResourceExhausted(
          "bandoneon-server is out of memory: no thread can start: %s", error.what());
    }
    served.started = served.result.ok();
    if (served.started) {
      progress.Start();
      main->supervisor().Status("serving a job");
      served.result = server->Wait();
    }
    const uint64_t one = 1;
    (void)!write(over_fd, &one, sizeof(one));
  });
  // Collecting the metrics takes the locks that the server's work needs. The supervisor hears of
  // this daemon only while that returns, so a deadlock is noticed.
  const auto pulse = [telemetry] { (void)telemetry->Collect(); };
  MainLoop::Woken woken = main->Wait(over_fd, absl::InfiniteFuture(), pulse);
  const bool had_begun = progress.End();
  bool has_left = false;
  if (woken == MainLoop::Woken::kBySignal) {
    LogInfo("ending on %s", main->signal());
    has_left = had_begun && !main->lacks_memory() && HandOver(*main, *server, control);
    if (had_begun && !has_left) woken = main->Drain(over_fd, drain_timeout, pulse);
  }
  // From here on the daemon ends itself if it has not ended within a minute.
  main->BeginToEnd();
  if (woken != MainLoop::Woken::kByEvent) {
    const absl::Status why = WhyStopped("bandoneon-server", *main);
    // Before Close, which ends the connection over which the reason goes.
    if (!has_left && (had_begun || main->lacks_memory())) (void)control->Leave(why, kLeaveTimeout);
    control->Close();
    server->Stop();
  }
  job.join();
  close(over_fd);
  if (woken != MainLoop::Woken::kByEvent) {
    served.result = main->lacks_memory() ? WhyStopped("bandoneon-server", *main) : absl::OkStatus();
    return served;
  }
  // If it has joined, all nodes hear why it could not start.
  if (!served.started && absl::IsResourceExhausted(served.result)) {
    (void)control->Leave(served.result, kLeaveTimeout);
  }
  // The job is done. The server leaves regularly, so that the scheduler does not look for it.
  if (served.started && served.result.ok()) (void)control->Leave(absl::OkStatus(), kLeaveTimeout);
  return served;
}

// Serves one job, with a transport, keys and memory of its own: nothing of it is left for the next
// one.
absl::StatusOr<ServedJob> ServeJob(const ServerOptions& options, MainLoop* main, const Clock* clock,
                                   HealthServer* health, Registry* telemetry) {
  BDN_ASSIGN_OR_RETURN(
      auto control, SchedulerClient::Create(options.scheduler, options.server.credentials, clock));
  TransportOptions transport_options = options.transport;
  transport_options.clock = clock;
  BDN_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                       MakeTransport(options.server.listen, transport_options));
  Server::Options of_server = options.server;
  of_server.on_listening = [main] {
    main->supervisor().Ready();
    main->supervisor().Status("waiting for a job's nodes to join");
  };
  Server server(of_server, telemetry, control.get(), transport.get());
  ServedJob served =
      ServeUntil(main, options.drain_timeout, &server, telemetry, control.get(), health);
  ReportJob(*telemetry, options.metrics_file);
  if (IsUnneeded(served.result)) {
    LogInfo("%s", served.result.message());
  } else if (!served.result.ok()) {
    LogError("%s", served.result.message());
  }
  main->EndIfMemoryIsOut();
  return served;
}

int ExitCodeOf(const absl::Status& result) {
  if (IsEvicted(result)) return kStartMeAgain;
  return result.ok() || IsUnneeded(result) ? 0 : 1;
}

absl::StatusOr<int> Serve(const Config& config) {
  BDN_ASSIGN_OR_RETURN(const ServerOptions options, ReadServerOptions(config));
  // The job will tell how many workers it has; this is the least that any job needs.
  BDN_RETURN_IF_ERROR(CheckDescriptors(1, "a server"));
  InitLog(options.log_level, "server");
  const SteadyClock clock;
  MainLoop main(&clock);
  RouteGrpcLog();
  PrepareProcessForTransports();
  BDN_ASSIGN_OR_RETURN(const auto health, HealthServer::Start(options.health_listen));
  Registry telemetry;
  BDN_ASSIGN_OR_RETURN(const auto metrics,
                       StartMetrics(options.metrics_listen, {"server", BDN_VERSION}, &telemetry));
  for (;;) {
    BDN_ASSIGN_OR_RETURN(const ServedJob served,
                         ServeJob(options, &main, &clock, health.get(), &telemetry));
    if (main.signal() != nullptr || options.exit_when_done || !MayServeNext(served)) {
      return ExitCodeOf(served.result);
    }
    main.EndedInTime();
    LogInfo("ready for the next job");
  }
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  return bdn::RunDaemon(
      {.name = "bandoneon-server",
       .usage = bdn::kUsage,
       .version = absl::StrFormat("%s, wire version %d, kernels %s", BDN_VERSION, bdn::kWireVersion,
                                  bdn::KernelTargets().front()),
       .settings = bdn::ServerSettings(),
       .elsewhere = bdn::AllSettings(),
       .check = [](const auto& config) { return bdn::ReadServerOptions(config).status(); },
       .serve = bdn::Serve},
      {argv + 1, argv + argc});
}
