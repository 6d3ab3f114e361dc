// bandoneon-scheduler: the control plane of one job.

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/daemon.h"
#include "common/base/descriptors.h"
#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/status.h"
#include "common/cluster/health.h"
#include "common/cluster/membership_history.h"
#include "common/cluster/settings.h"
#include "common/http/metrics_page.h"
#include "common/telemetry/history_file.h"
#include "common/telemetry/registry.h"
#include "scheduler/job_journal.h"
#include "scheduler/job_metrics.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/service.h"
#include "scheduler/status_page.h"

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
    "  bandoneon-scheduler --workers 2 --http-listen 127.0.0.1:7070   # with a page for browsers\n"
    "  bandoneon-scheduler --workers 2 --exit-when-done=false   # one job after another, as "
    "restarts need\n"
    "  bandoneon-scheduler --workers 2 --listen 10.0.0.1:7000 --journal /var/lib/bandoneon\n"
    "                                # one that is killed and started again goes on with the job\n"
    "  BANDONEON_WORKERS=8 BANDONEON_LEASE_TIMEOUT=10s bandoneon-scheduler --check-config\n"
    "\n"
    "Ends with 0 when all nodes have left or on SIGTERM, with 1 when the job failed, with 2 when "
    "it\n"
    "could not start. With --exit-when-done=false only a signal ends it. A second signal ends it "
    "at once.\n"
    "With --journal a signal ends it, and not the job: whoever is started next goes on with that.\n"
    "\n"
    "settings:\n";

// The interval of log lines about missing nodes.
constexpr absl::Duration kMissingInterval = absl::Seconds(5);
// The time for telling the nodes how the job has ended for them before the process ends.
constexpr absl::Duration kDeliveryTimeout = absl::Seconds(2);

// Returns ", without worker 1, worker 2": the workers that the job has gone on without; or nothing.
// `bandoneon run` reads that.
std::string LostWorkers(const MembershipTable& table) {
  std::string text;
  for (const Rank rank : table.LostRanks()) {
    absl::StrAppendFormat(&text, "%s worker %d", text.empty() ? ", without" : ",", rank);
  }
  return text;
}

// Writes a file by a rename, so that a process that waits for the file sees all of it or nothing.
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

// The loop of the daemon after its start, which waits for the job's end or a signal.
class DaemonLoop {
 public:
  DaemonLoop(SchedulerService* service, MainLoop* main, HealthServer* health, const Clock* clock,
             const SchedulerOptions& options, HistoryFile* history)
      : service_(service),
        main_(main),
        health_(health),
        clock_(clock),
        changed_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        options_(options),
        history_(history) {
    // A former scheduler has logged what it decided.
    service_->host()->Read([this](const Job& job, absl::Time) {
      if (!job.changes().empty()) told_epoch_ = job.changes().rbegin()->first;
    });
  }
  ~DaemonLoop() { close(changed_fd_); }
  DaemonLoop(const DaemonLoop&) = delete;
  DaemonLoop& operator=(const DaemonLoop&) = delete;

  // Runs until the job has ended, where another one follows; otherwise until the process is to end.
  void Run() {
    const uint64_t observer = service_->host()->AddObserver(JobHost::Observed::kJob, [this] {
      const uint64_t one = 1;
      (void)!write(changed_fd_, &one, sizeof(one));
    });
    while (!over_) HandleNext();
    // From here on the end has a time limit: closing must not hang unnoticed.
    main_->BeginToEnd();
    service_->host()->RemoveObserver(observer);
    WriteFailureFile();
    service_->Close();
  }
  bool failed() const { return failed_; }
  // Returns whether another scheduler has taken the job over.
  bool superseded() const { return superseded_; }

 private:
  void HandleNext() {
    const absl::Time next_report =
        waiting_ ? clock_->Now() + kMissingInterval : absl::InfiniteFuture();
    // Taking JobHost's lock proves that it is not stuck.
    const auto pulse = [this] { service_->host()->Read([](const Job&, absl::Time) {}); };
    switch (main_->Wait(changed_fd_, std::min(next_report, drained_by_), pulse)) {
      case MainLoop::Woken::kByTime:
        return clock_->Now() < drained_by_ ? LogMissingNodes() : StopJob();
      case MainLoop::Woken::kBySignal:
        return OnSignal();
      case MainLoop::Woken::kByEvent:
        break;
    }
    uint64_t count;
    // Reset before the job is read: a change in between raises it again.
    (void)!read(changed_fd_, &count, sizeof(count));
    OnChange();
  }

  void LogMissingNodes() {
    std::string missing;
    service_->host()->Read([&](const Job& job, absl::Time) {
      if (job.state() == Job::State::kWaiting) missing = job.MissingNodes();
    });
    if (missing.empty()) return;
    LogInfo("waiting for %s", missing);
    main_->supervisor().Status("waiting for " + missing);
  }

  void OnSignal() {
    // Readiness ends at once, although the job may go on to its end.
    service_->EndHealth();
    if (health_ != nullptr) health_->SetServing(false);
    LogInfo("ending on %s", main_->signal());
    if (!options_.journal.empty() && !main_->lacks_memory()) {
      // Nodes of a job that has not begun join the next scheduler.
      bool has_begun = false;
      service_->host()->Read(
          [&](const Job& job, absl::Time) { has_begun = job.state() != Job::State::kWaiting; });
      if (has_begun) {
        LogInfo(
            "the job goes on: its nodes wait up to %s for a scheduler that has the journal in %s",
            absl::FormatDuration(options_.job.config.scheduler_timeout), options_.journal);
      }
      over_ = true;
      return;
    }
    if (waiting_ || options_.drain_timeout == absl::ZeroDuration() || main_->lacks_memory()) {
      return StopJob();
    }
    LogInfo("the job that runs has %s to end by itself",
            absl::FormatDuration(options_.drain_timeout));
    main_->supervisor().Status("draining: a job runs");
    drained_by_ = clock_->Now() + options_.drain_timeout;
  }

  void StopJob() {
    service_->host()->Stop(absl::StrFormat("the scheduler was stopped by %s", main_->signal()));
    service_->AwaitNodesTold(kDeliveryTimeout);
    over_ = true;
  }

  void OnChange() {
    bool finished = false;
    absl::Status failure;
    bool waiting = false;
    absl::Status superseded;
    std::string without;
    std::map<Epoch, std::string> changes;
    std::shared_ptr<const Membership> membership;
    service_->host()->Read([&](const Job& job, absl::Time) {
      changes.insert(job.changes().upper_bound(told_epoch_), job.changes().end());
      superseded = job.superseded();
      finished = job.finished();
      failure = job.failure();
      waiting = job.state() == Job::State::kWaiting;
      membership = job.table().membership();
      if (finished) without = LostWorkers(job.table());
    });
    if (membership != nullptr) SetLogEpoch(membership->epoch);
    if (membership != nullptr && membership != written_) {
      WriteEpoch(*membership, history_);
      written_ = membership;
    }
    if (waiting_ && !waiting && failure.ok()) {
      LogInfo("all nodes have joined");
      main_->supervisor().Status("a job runs");
    }
    waiting_ = waiting;
    for (const auto& [epoch, text] : changes) {
      LogWarning("the job goes on, %s", text);
      told_epoch_ = epoch;
    }
    if (!superseded.ok()) {
      // The nodes are told nothing: their job goes on with the other scheduler.
      LogError("this scheduler ends, and not the job: %s", superseded.message());
      superseded_ = true;
      over_ = true;
      return;
    }
    if (!failure.ok() && !failed_) {
      failed_ = true;
      LogError("the job failed: %s", failure.message());
      service_->AwaitNodesTold(kDeliveryTimeout);
      over_ = true;
    } else if (failure.ok() && finished) {
      LogInfo("the job is done%s", without);
      // One that was stopped until now, and that the job has gone on without, reads that when it
      // goes on. Else it would wait for a scheduler to return.
      service_->AwaitNodesTold(kDeliveryTimeout);
      over_ = true;
    }
  }

  void WriteFailureFile() {
    if (options_.failure_file.empty()) return;
    std::string text;
    service_->host()->Read([&](const Job& job, absl::Time) {
      if (job.failure().ok()) return;
      for (const std::string& name : job.WhoWent()) text += name + "\n";
      text += absl::StrFormat("\n%s\n", job.failure().message());
    });
    if (text.empty()) return;
    const absl::Status status = WriteFile("failure-file", options_.failure_file, text);
    if (!status.ok()) LogWarning("%s", status.message());
  }

  SchedulerService* const service_;
  MainLoop* const main_;
  HealthServer* const health_;
  const Clock* const clock_;
  const int changed_fd_;
  const SchedulerOptions& options_;
  HistoryFile* const history_;                 // null: none
  std::shared_ptr<const Membership> written_;  // the last that is in the history
  bool waiting_ = true;
  Epoch told_epoch_ = 0;  // of the last change of the membership that was logged
  bool failed_ = false;
  bool superseded_ = false;
  // Infinite until a signal has come; then the time until which the job may run.
  absl::Time drained_by_ = absl::InfiniteFuture();
  bool over_ = false;
};

// Logs that a job goes on which another scheduler has begun.
void LogResumed(const JobHost::Logged& logged, const std::string& job_id) {
  if (logged.events.empty()) return;
  LogInfo("this scheduler goes on with job %s, by %d records of its journal", job_id,
          logged.events.size());
}

// Returns the journal that the options name; null: they name none.
absl::StatusOr<std::unique_ptr<JobJournal>> OpenJournal(const Config& config,
                                                        const SchedulerOptions& options) {
  if (options.journal.empty()) return nullptr;
  // A journal that reaches a limit on files' sizes is an error of a write, and not the end.
  std::signal(SIGXFSZ, SIG_IGN);
  return JobJournal::Open(options.journal, config.Text("job-id"), options.job);
}

// Has a journal, if there is one, know the port at which a job's nodes look for their scheduler.
absl::Status NotePort(SchedulerService* service, JobJournal* journal) {
  absl::Status noted;
  if (journal == nullptr) return noted;
  // The job logs under this lock.
  service->host()->Read([&](const Job&, absl::Time) { noted = journal->SetPort(service->port()); });
  return noted;
}

absl::StatusOr<int> Serve(const Config& config) {
  BDN_ASSIGN_OR_RETURN(const SchedulerOptions options, ReadSchedulerOptions(config));
  const JobConfig& job = options.job.config;
  BDN_RETURN_IF_ERROR(CheckDescriptors(static_cast<uint64_t>(job.num_workers + job.num_servers),
                                       "the scheduler of this job"));
  InitLog(options.log_level, "scheduler");
  SetLogPlace({.job = job.job_id});
  const SteadyClock clock;
  MainLoop main(&clock);
  RouteGrpcLog();
  BDN_ASSIGN_OR_RETURN(const auto health, HealthServer::Start(options.health_listen));
  Registry telemetry;
  JobsEnded ended(&telemetry);
  BDN_ASSIGN_OR_RETURN(const auto metrics, StartMetrics(options.metrics_listen,
                                                        {"scheduler", BDN_VERSION}, &telemetry));
  BDN_ASSIGN_OR_RETURN(const auto page,
                       StatusPage::Start(options.http_listen, options.job.credentials));
  if (page != nullptr && !options.http_port_file.empty()) {
    BDN_RETURN_IF_ERROR(
        WriteFile("http-port-file", options.http_port_file, absl::StrFormat("%d\n", page->port())));
  }
  BDN_ASSIGN_OR_RETURN(const auto history, HistoryFile::Open(options.history_file, "scheduler"));
  BDN_ASSIGN_OR_RETURN(const auto journal, OpenJournal(config, options));
  std::string listen = options.listen;
  const auto at_port = [&listen](int port) {
    listen = absl::StrFormat("%s:%d", listen.substr(0, listen.find_last_of(':')), port);
  };
  // The nodes of a job that goes on look for its scheduler where it was.
  if (journal != nullptr && journal->port() != 0 && absl::EndsWith(listen, ":0")) {
    at_port(journal->port());
  }
  for (bool is_first = true;; is_first = false) {
    // Each job has a service of its own: nothing of one job, secrets included, is left in the next.
    JobOptions job_options = options.job;
    JobHost::Logged logged;
    if (journal != nullptr) {
      BDN_ASSIGN_OR_RETURN(logged, journal->BeginJob(&job_options));
      SetLogPlace({.job = job_options.config.job_id});
      LogResumed(logged, job_options.config.job_id);
    }
    BDN_ASSIGN_OR_RETURN(const auto service,
                         SchedulerService::Start(listen, job_options, &clock, std::move(logged)));
    BDN_RETURN_IF_ERROR(NotePort(service.get(), journal.get()));
    const auto counted = AddJobMetrics(service.get(), &telemetry);
    const StatusPage::Shown shown(page.get(), service->host());
    if (is_first && !options.port_file.empty()) {
      BDN_RETURN_IF_ERROR(
          WriteFile("port-file", options.port_file, absl::StrFormat("%d\n", service->port())));
    }
    LogInfo("job %s listens at port %d (%s) for %d worker(s) and %d server(s)",
            job_options.config.job_id, service->port(), options.listen, job.num_workers,
            job.num_servers);
    if (health != nullptr) health->SetServing(true);
    main.supervisor().Ready();
    main.supervisor().Status("waiting for a job's nodes to join");
    if (history != nullptr) {
      history->Write("begin", HistoryText("role", "scheduler") +
                                  HistoryText("job", job_options.config.job_id));
    }
    DaemonLoop loop(service.get(), &main, health.get(), &clock, options, history.get());
    loop.Run();
    main.EndIfMemoryIsOut();
    if (main.signal() != nullptr) return 0;
    main.EndedInTime();
    if (loop.superseded()) return 1;
    if (journal != nullptr) {
      // The service is closed, so no job logs any more.
      const absl::Status status = journal->EndJob();
      if (!status.ok())
        LogWarning("the journal does not know that the job has ended: %s", status.message());
    }
    ended.Count(loop.failed());
    if (options.exit_when_done) return loop.failed() ? 1 : 0;
    LogInfo("ready for the next job");
    // The next job listens at the same port, even where the first took a free one: nodes know it.
    at_port(service->port());
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
