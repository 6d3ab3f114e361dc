#ifndef BANDONEON_CLI_LOCAL_JOB_H_
#define BANDONEON_CLI_LOCAL_JOB_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "cli/echo_filter.h"
#include "cli/line_printer.h"
#include "cli/process_group.h"
#include "cli/remote_worker.h"

namespace bdn::cli {

// This host's own address: 127.0.0.1, or ::1 where only that can be listened at.
std::string Loopback();
std::string ChooseLoopback(const std::function<bool(const std::string& address)>& can_listen);

struct JobOptions {
  const char* command = "run";  // what our own lines are tagged with
  int workers = 1;
  // With hosts, so many daemons through which as many workers each take part, as if they were of hosts of
  // their own. 0: each worker takes part itself.
  int hosts = 0;
  // Where workers run, by ssh; empty: here. Their numbers add up to `workers`, and there are no `hosts`.
  std::vector<RemoteHost> remote;
  std::vector<std::string> ssh_options;
  std::string advertise = Loopback();  // an address of this host that all workers reach
  bool json_lines = false;             // whether what we print is an object a line
  int input = -1;                      // a descriptor that the one worker reads; -1: nobody does
  int servers = 1;
  std::string seed;         // of the scheduler; "" leaves it to its default
  std::string http_listen;  // of the scheduler's status page; "" for none
  Variables settings;       // BANDONEON_NAME=value for every process
  bool over_ipc = false;    // servers listen at socket files of the job's directory, else over TCP
  bool counts = false;      // whether the servers write metrics files
  // After one process failed the others may end with errors of their own for so long, then they get
  // SIGTERM, and `grace` later SIGKILL.
  std::chrono::milliseconds linger{6000};
  std::chrono::milliseconds grace{5000};
};

// A whole job on this machine, but for workers that are elsewhere: a scheduler, servers and workers, from
// start to end. When one of
// them fails all are ended, and so are they when a signal comes for us. Not thread-safe.
class LocalJob {
 public:
  // A line that a worker wrote to standard output.
  using WorkerLine = std::function<void(int rank, std::string_view line)>;

  // `directory` is private and temporary, and outlives this. Without a handler workers' lines are
  // printed, as all others are: "[worker 0] line" to the stream it came from.
  LocalJob(JobOptions options, std::string directory, WorkerLine worker_line = nullptr);
  ~LocalJob();
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Starts the scheduler, waits until it listens, and starts the servers. Errors name the process.
  absl::Status StartDaemons();
  // Starts the next worker, from rank 0, with the variables that it needs to join. After
  // StartDaemons.
  absl::Status StartWorker(const std::vector<std::string>& argv, bool wants_input = false);

  // Calls `task` inside Wait at `when`; a later call replaces an earlier one.
  void SetTimer(Clock::time_point when, std::function<void()> task);
  void WriteToWorker(int rank, std::string_view text) { group_.Write(worker(rank), text); }
  // Ends the job as if a process had failed with `code`.
  void Fail(int code, std::string_view why);

  // Supervises until everything has ended, which it makes sure of. 0 when all workers returned 0,
  // else the code of the process that failed first, which it names last, or 128 + the signal that
  // came for us. Others fail because of it, and may end before it, and it itself may hang: which was
  // first is what the scheduler has seen, and where it has seen nothing, who ended first. The code is
  // 1 where the process that failed has not ended by itself.
  int Wait();
  // A line of our own, to standard error.
  void Say(std::string_view line) { Print(ProcessGroup::Stream::kError, options_.command, line); }
  // After Start... failed: says why, kills what runs, and returns the exit code.
  int GiveUp(const absl::Status& why);

  const std::string& scheduler_address() const { return scheduler_address_; }
  // "http://127.0.0.1:7070/"; empty where there is no status page. After StartDaemons.
  const std::string& page_url() const { return page_url_; }
  // Where the secret that this job was given lies; empty where it has one by its settings.
  const std::string& token_file() const { return token_file_; }
  // CPU time so far of all processes of a role, those that run.
  std::chrono::nanoseconds SchedulerCpu() const { return group_.CpuTime(0); }
  std::chrono::nanoseconds ServersCpu() const;
  std::chrono::nanoseconds WorkersCpu() const;
  std::chrono::nanoseconds HostsCpu() const;
  // Memory of all servers now.
  int64_t ServersResidentBytes() const;
  ProcessGroup::Events CountServersEvents() const;
  // Where a server writes what it counted, at its end. Of jobs with `counts`.
  std::string MetricsFile(int server) const;

 private:
  enum class Phase {
    kRunning,
    kLingering,      // one failed; the others may end on their own
    kEndingWorkers,  // they were told to
    kEndingDaemons,  // all workers have ended, the rest was told to
  };

  size_t host(int number) const { return 1 + static_cast<size_t>(options_.servers + number); }
  size_t worker(int rank) const { return host(options_.hosts + rank); }
  int workers_per_host() const { return options_.workers / std::max(options_.hosts, 1); }
  std::string HostAddress(int number) const;
  // Whether the scheduler means this process by what it calls a node.
  bool IsNode(size_t process, const std::string& name) const;
  bool is_worker(size_t process) const { return process >= worker(0); }
  bool WorkersAlive() const;
  std::string FailureFile() const { return directory_ + "/failure"; }
  std::string PagePortFile() const { return directory_ + "/http-port"; }
  void HandleText(size_t process, ProcessGroup::Stream stream, std::string_view text,
                  ProcessGroup::End end);
  void Print(ProcessGroup::Stream stream, std::string_view tag, std::string_view text,
             ProcessGroup::End end = ProcessGroup::End::kNewline);
  void Write(ProcessGroup::Stream stream, std::string_view text);
  // Of the worker that starts next: its host, and how many of that come before it.
  std::pair<size_t, int> NextPlace() const;
  bool is_remote(size_t process) const { return is_worker(process) && !options_.remote.empty(); }
  std::string Advertised(int port) const;
  absl::Status MakeToken();
  absl::Status StartDaemon(const std::string& name, std::vector<std::string> argv);
  void ReadPageUrl();
  absl::Status AwaitPort(int watch_fd, const std::string& port_file);
  void HandleEnd(size_t process, int code);
  struct Failure {
    size_t process;
    int code;  // 0 where it has not ended by itself
  };
  // Whom the scheduler has recorded as `names`, by those who ended with errors first.
  std::optional<Failure> FindCause(const std::vector<std::string>& names,
                                   const std::string& reason) const;
  void SayOthers(const Failure& cause);
  void SayCause();
  // False when everything is to be killed at once.
  bool HandleSignal(int signal);
  bool HandleTimeout();
  void Enter(Phase phase, std::chrono::milliseconds limit);
  void SignalAll(bool workers, int signal);

  const JobOptions options_;
  const std::string directory_;
  const WorkerLine worker_line_;
  const std::string job_id_;
  std::string master_port_;
  int master_port_fd_ = -1;  // keeps the port for the worker that will listen at it
  std::string scheduler_address_;
  std::string page_url_;
  std::string token_;       // of this job's own making; empty where the settings have one
  std::string token_file_;  // for who asks about the job
  int workers_started_ = 0;

  Phase phase_ = Phase::kRunning;
  int code_ = 0;
  std::vector<Failure> failures_;  // in the order in which they ended
  bool output_lost_ = false;
  LinePrinter printer_;
  EchoFilter echoes_;
  std::optional<Clock::time_point> deadline_;  // of the phase
  std::optional<Clock::time_point> timer_;
  std::function<void()> timer_task_;
  ProcessGroup group_;  // last: its destructor still hands over lines
};

// The path of a program beside this one.
std::string ProgramBeside(const std::string& name);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_LOCAL_JOB_H_
