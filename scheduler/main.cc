// bandoneon-scheduler: the control plane of one job.

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/daemon.h"
#include "common/base/descriptors.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/settings.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/service.h"

namespace bdn {
namespace {

constexpr char kUsage[] =
    "bandoneon-scheduler: gathers the nodes of one job and keeps them in step.\n"
    "\n"
    "usage: bandoneon-scheduler [--check-config] [--help] [--version] [settings]\n"
    "\n"
    "examples:\n"
    "  bandoneon-scheduler --listen 127.0.0.1:7000 --workers 2 --servers 2\n"
    "  bandoneon-scheduler --workers 2 --port-file /tmp/port   # takes a free port and says which\n"
    "  bandoneon-scheduler --workers 2 --exit-when-done=false   # one job after another, as restarts need\n"
    "  BANDONEON_WORKERS=8 BANDONEON_LEASE_TIMEOUT=10s bandoneon-scheduler --check-config\n"
    "\n"
    "Ends with 0 when all nodes have left or on SIGTERM, with 1 when the job failed, with 2 when it\n"
    "could not start. With --exit-when-done=false only a signal ends it.\n"
    "\n"
    "settings:\n";

constexpr absl::Duration kMissingInterval = absl::Seconds(5);
constexpr absl::Duration kDeliveryTimeout = absl::Seconds(2);

// Whoever waits for the file sees all of it or nothing.
absl::Status WriteFile(const char* setting, const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrFormat("%s.%d", path, getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status =
        InvalidArgument("cannot write %s %s: %s", setting, path, std::strerror(errno));
    std::remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

// The daemon after its start: waits for the job's end or a signal.
class DaemonLoop {
 public:
  DaemonLoop(SchedulerService* service, int signal_fd, const SchedulerOptions& options)
      : service_(service),
        signal_fd_(signal_fd),
        changed_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        options_(options) {}
  ~DaemonLoop() { close(changed_fd_); }
  DaemonLoop(const DaemonLoop&) = delete;
  DaemonLoop& operator=(const DaemonLoop&) = delete;

  // Until the job has ended, where another one follows; else until the process is to end.
  void Run() {
    const uint64_t observer = service_->host()->AddObserver(JobHost::Observed::kJob, [this] {
      const uint64_t one = 1;
      (void)!write(changed_fd_, &one, sizeof(one));
    });
    while (!over_) HandleNext();
    service_->host()->RemoveObserver(observer);
    WriteFailureFile();
    service_->Close();
  }
  bool failed() const { return failed_; }
  bool signalled() const { return signalled_; }

 private:
  void HandleNext() {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {changed_fd_, POLLIN, 0}};
    const int timeout_ms =
        waiting_ ? static_cast<int>(absl::ToInt64Milliseconds(kMissingInterval)) : -1;
    const int ready = poll(fds, 2, timeout_ms);
    if (ready < 0) return;  // interrupted
    if (ready == 0) return LogMissingNodes();
    if (fds[0].revents != 0) return OnSignal();
    uint64_t count;
    (void)!read(changed_fd_, &count, sizeof(count));
    OnChange();
  }

  void LogMissingNodes() {
    std::string missing;
    service_->host()->Read([&](const Job& job, absl::Time) {
      if (job.state() == Job::State::kWaiting) missing = job.MissingNodes();
    });
    if (!missing.empty()) LogInfo("waiting for %s", missing);
  }

  void OnSignal() {
    signalfd_siginfo info;
    (void)!read(signal_fd_, &info, sizeof(info));
    const char* name = info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT";
    LogInfo("ending on %s", name);
    service_->host()->Stop(absl::StrFormat("the scheduler was stopped by %s", name));
    service_->AwaitFailureDelivered(kDeliveryTimeout);
    signalled_ = over_ = true;
  }

  void OnChange() {
    bool finished = false;
    absl::Status failure;
    bool waiting = false;
    service_->host()->Read([&](const Job& job, absl::Time) {
      finished = job.finished();
      failure = job.failure();
      waiting = job.state() == Job::State::kWaiting;
    });
    if (waiting_ && !waiting && failure.ok()) LogInfo("all nodes have joined");
    waiting_ = waiting;
    if (!failure.ok() && !failed_) {
      failed_ = true;
      LogError("the job failed: %s", failure.message());
      service_->AwaitFailureDelivered(kDeliveryTimeout);
      over_ = true;
    } else if (failure.ok() && finished) {
      LogInfo("the job is done");
      over_ = true;
    }
  }

  void WriteFailureFile() {
    if (options_.failure_file.empty()) return;
    std::string text;
    service_->host()->Read([&](const Job& job, absl::Time) {
      if (job.failure().ok()) return;
      for (const std::string& name : job.WhoWent()) text += name + "\n";
    });
    if (text.empty()) return;
    const absl::Status status = WriteFile("failure-file", options_.failure_file, text);
    if (!status.ok()) LogWarning("%s", status.message());
  }

  SchedulerService* const service_;
  const int signal_fd_;
  const int changed_fd_;
  const SchedulerOptions& options_;
  bool waiting_ = true;
  bool failed_ = false;
  bool signalled_ = false;
  bool over_ = false;
};

absl::StatusOr<int> Serve(const Config& config) {
  BDN_ASSIGN_OR_RETURN(const SchedulerOptions options, ReadSchedulerOptions(config));
  const JobConfig& job = options.job.config;
  BDN_RETURN_IF_ERROR(CheckDescriptors(static_cast<uint64_t>(job.num_workers + job.num_servers),
                                       "the scheduler of this job"));
  InitLog(options.log_level, "scheduler");
  const int signal_fd = BlockEndSignals();
  RouteGrpcLog();
  const SteadyClock clock;
  std::string listen = options.listen;
  for (bool is_first = true;; is_first = false) {
    // Each job has a service of its own: nothing of one, secrets included, is left in the next.
    BDN_ASSIGN_OR_RETURN(const auto service, SchedulerService::Start(listen, options.job, &clock));
    if (is_first && !options.port_file.empty()) {
      BDN_RETURN_IF_ERROR(
          WriteFile("port-file", options.port_file, absl::StrFormat("%d\n", service->port())));
    }
    LogInfo("job %s listens at port %d (%s) for %d worker(s) and %d server(s)", job.job_id,
            service->port(), options.listen, job.num_workers, job.num_servers);
    DaemonLoop loop(service.get(), signal_fd, options);
    loop.Run();
    if (options.exit_when_done) return loop.failed() ? 1 : 0;
    if (loop.signalled()) return 0;
    LogInfo("ready for the next job");
    listen = absl::StrFormat("%s:%d", listen.substr(0, listen.find_last_of(':')), service->port());
  }
}

}  // namespace
}  // namespace bdn

int main(int argc, char** argv) {
  return bdn::RunDaemon(
      {.name = "bandoneon-scheduler",
       .usage = bdn::kUsage,
       .version = absl::StrFormat("%s, control version %d", BDN_VERSION, bdn::kControlVersion),
       .settings = bdn::SchedulerSettings(),
       .elsewhere = bdn::AllSettings(),
       .check = [](const auto& config) { return bdn::ReadSchedulerOptions(config).status(); },
       .serve = bdn::Serve},
      {argv + 1, argv + argc});
}
