// bandoneon-worker: takes part in a job for all processes of its host.

#include <sys/eventfd.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/daemon.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/processors.h"
#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/settings.h"
#include "common/http/metrics_page.h"
#include "common/telemetry/job_report.h"
#include "worker/host/host_options.h"
#include "worker/host/host_server.h"
#include "worker/host/worker_join.h"

namespace bdn {
namespace {

constexpr char kUsage[] =
    "bandoneon-worker: takes part in a job for all processes of its host. It sums what they push "
    "in\n"
    "shared memory, and encodes, exchanges and decodes it once for all of them.\n"
    "\n"
    "usage: bandoneon-worker --scheduler HOST:PORT --attach ADDRESS --processes COUNT\n"
    "         [--check-config] [--help] [--version] [settings]\n"
    "\n"
    "examples:\n"
    "  bandoneon-worker --scheduler 10.0.0.1:7000 --attach unix:@gpt-7 --processes 4\n"
    "  BANDONEON_ATTACH=unix:@gpt-7 torchrun --nproc-per-node 4 train.py   # the processes\n"
    "  bandoneon-worker --scheduler 10.0.0.1:7000 --attach unix:/run/gpt-7.sock --processes 8 \\\n"
    "    --rank 3 --threads 4 --cpus node0\n"
    "  bandoneon run --hosts 2 --procs-per-host 2 -s 2 -- python train.py  # all of it, on one "
    "machine\n"
    "\n"
    "Processes find it by the setting attach, as BANDONEON_ATTACH, and must be of its user. The "
    "job counts\n"
    "it as one worker: give bandoneon-scheduler the number of hosts as --workers. Ends with 0 "
    "when all\n"
    "processes have left or on SIGTERM, with 1 when the job failed, with 2 when it could not "
    "start. With\n"
    "--exit-when-done=false it joins the next job instead, until a signal comes. A second signal "
    "ends it at\n"
    "once.\n"
    "\n"
    "settings:\n";

// Serves one job, with a worker and memory of its own: nothing of it is left for the next one.
// After a signal, a job that has begun has some time to end by itself.
ServedJob ServeJob(const Config& config, const HostOptions& options, MainLoop* main,
                   HostListener* listener, const Clock* clock, HealthServer* health,
                   Registry* telemetry) {
  ServedJob served;
  HostServer server(options.server, clock);
  std::unique_ptr<Worker> worker;
  bool ending = false;
  const int over_fd = eventfd(0, EFD_CLOEXEC);
  Mutex mu;  // guards worker, and the state that health shows
  std::thread job([&] {
    Worker::Options of_worker = options.worker;
    // Set before the join: the job may fail as soon as the worker is part of it, even before
    // server.Start.
    of_worker.failed = [&](const absl::Status& status) { server.OnFailure(status); };
    of_worker.presence_changed = [&](const Presence& now, int candidates) {
      server.OnPresence(now, candidates);
    };
    auto joined = JoinAsWorker(config, of_worker, clock, telemetry);
    served.result = joined.status();
    if (joined.ok()) {
      {
        MutexLock lock(&mu);
        worker = *std::move(joined);
        if (health != nullptr && !ending) health->SetServing(true);
      }
      served.started = true;
      main->supervisor().Status("taking part in a job");
      LogInfo("host %d of the job: takes %d processes, workers %d to %d, at %s", worker->place(),
              options.server.processes, worker->rank(),
              worker->rank() + options.server.processes - 1, options.address.text);
      server.Start(listener, worker.get(), telemetry);
      served.result = server.Wait();
    }
    const uint64_t one = 1;
    (void)!write(over_fd, &one, sizeof(one));
  });
  // Collecting the metrics takes the locks that the daemon's work needs. The supervisor hears of
  // this daemon only while that returns, so a deadlock is noticed.
  const auto pulse = [telemetry] { (void)telemetry->Collect(); };
  main->supervisor().Status("waiting for a job's nodes to join");
  MainLoop::Woken woken = main->Wait(over_fd, absl::InfiniteFuture(), pulse);
  bool had_begun = false;
  {
    MutexLock lock(&mu);
    ending = true;
    had_begun = worker != nullptr;
    if (health != nullptr) health->SetServing(false);
  }
  if (woken == MainLoop::Woken::kBySignal) {
    LogInfo("ending on %s", main->signal());
    if (had_begun) woken = main->Drain(over_fd, options.drain_timeout, pulse);
  }
  // From here on the daemon ends itself if it has not ended within a minute.
  main->BeginToEnd();
  const bool stopped = woken != MainLoop::Woken::kByEvent;
  if (stopped) {
    absl::Status why = WhyStopped("bandoneon-worker at " + options.address.text, *main);
    MutexLock lock(&mu);
    if (worker == nullptr) {  // it is joining: nothing is lost with it
      HostServer::Refuse(listener, why);
      listener->Close();
      _exit(main->lacks_memory() ? 1 : 0);
    }
    // The other nodes hear the reason before OnFailure ends the local waits.
    const std::string reason(why.message());
    if (main->lacks_memory()) {
      (void)worker->Abort(reason);
    } else if (worker->Depart(reason).ok()) {
      why = Evicted("the job goes on without this host: %s", reason);
    }
    server.OnFailure(why);
  }
  job.join();
  close(over_fd);
  if (worker != nullptr) {
    // The worker's waits end first, as HostServer::Close requires.
    worker->Close();
    server.Close();
  }
  ReportJob(*telemetry, options.metrics_file);
  if (stopped) {
    served.result = main->lacks_memory() ? WhyStopped("bandoneon-worker", *main) : absl::OkStatus();
  }
  if (!served.result.ok()) LogError("%s", served.result.message());
  if (main->lacks_memory()) HostServer::Refuse(listener, served.result);
  main->EndIfMemoryIsOut();
  // Last: the server's parts, and the metrics of the report, use it.
  worker.reset();
  return served;
}

absl::StatusOr<int> Serve(const Config& config) {
  BDN_ASSIGN_OR_RETURN(const HostOptions options, ReadHostOptions(config));
  InitLog(options.log_level, "host");
  const SteadyClock clock;
  MainLoop main(&clock);
  BDN_RETURN_IF_ERROR(KeepToProcessors(options.processors));  // for this thread and all later ones
  // Listens before it joins, so that processes may attach at any time; and once for all jobs, so
  // that a process that comes between two of them waits for the next.
  BDN_ASSIGN_OR_RETURN(HostListener listener, HostListener::ListenAt(options.address));
  RouteGrpcLog();
  BDN_ASSIGN_OR_RETURN(const auto health, HealthServer::Start(options.health_listen));
  Registry telemetry;
  BDN_ASSIGN_OR_RETURN(const auto metrics,
                       StartMetrics(options.metrics_listen, {"worker", BDN_VERSION}, &telemetry));
  main.supervisor().Ready();
  LogInfo("processes attach at %s; joining the job of the scheduler at %s", options.address.text,
          config.Text("scheduler"));
  for (;;) {
    const ServedJob served =
        ServeJob(config, options, &main, &listener, &clock, health.get(), &telemetry);
    if (main.signal() != nullptr || options.exit_when_done || !MayServeNext(served)) {
      if (!served.result.ok()) HostServer::Refuse(&listener, served.result);
      if (IsEvicted(served.result)) return kStartMeAgain;
      return served.result.ok() ? 0 : served.started ? 1 : 2;
    }
    main.EndedInTime();
    LogInfo("ready for the next job");
  }
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  return bdn::RunDaemon(
      {.name = "bandoneon-worker",
       .usage = bdn::kUsage,
       .version = BDN_VERSION,
       .settings = bdn::HostSettings(),
       .elsewhere = bdn::AllSettings(),
       .check = [](const auto& config) { return bdn::ReadHostOptions(config).status(); },
       .serve = bdn::Serve},
      {argv + 1, argv + argc});
}
