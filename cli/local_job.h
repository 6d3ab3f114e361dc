#ifndef BANDONEON_CLI_LOCAL_JOB_H_
#define BANDONEON_CLI_LOCAL_JOB_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/echo_filter.h"
#include "cli/line_printer.h"
#include "cli/process_group.h"
#include "cli/remote_worker.h"
#include "cli/worker_restarts.h"

namespace bdn::cli {

// Returns this machine's own address: 127.0.0.1, or ::1 where only that can be listened at.
std::string Loopback();
std::string ChooseLoopback(const std::function<bool(const std::string& address)>& can_listen);

// The options of a job of this machine.
struct JobOptions {
  const char* command = "run";  // the tag of our own lines
  int workers = 1;
  // The number of host daemons, each for an equal share of the workers, which emulate as many
  // machines. 0: each worker takes part itself.
  int hosts = 0;
  // The machines on which workers run, by ssh; empty: on this one. Their numbers of workers add up
  // to `workers`, and `hosts` is 0.
  std::vector<RemoteHost> remote;
  std::vector<std::string> ssh_options;
  std::string advertise = Loopback();  // an address of this machine that all workers reach
  bool json_lines = false;             // whether each line that we print is a JSON object
  int input = -1;                      // the standard input of the only worker; -1: none
  int servers = 1;
  // The setting min-workers: a worker that a signal ends is not the end of the job while so many
  // are left, or so many host daemons where there are hosts. 0: all are needed.
  int min_workers = 0;
  // Whether a server that a signal ends is not the end of the job while another server runs, or
  // while it is started again; by the setting replay-steps.
  bool may_lose_servers = false;
  // A scheduler that a signal ends is started again so often, and goes on with the job; so are
  // servers, within the same number, where may_lose_servers says so; and lost workers without which
  // the job goes on, where there are no hosts. The scheduler then keeps a journal, in the job's
  // directory unless the settings name another one.
  int restarts = 0;
  bool logs_begin = true;   // whether the scheduler's log has the lines of level info
  std::string seed;         // of the scheduler; "": its default
  std::string http_listen;  // of the scheduler's status page; "": none
  Variables settings;       // BANDONEON_NAME=value, for every process
  bool over_ipc = false;    // servers listen at socket files of the job's directory; else over TCP
  bool counts = false;      // whether the servers write metrics files
  // After a process has failed, the others have `linger` to end with errors of their own. Then they
  // get SIGTERM, and after `grace` SIGKILL.
  std::chrono::milliseconds linger{6000};
  std::chrono::milliseconds grace{5000};
};

// A whole job on this machine, but for workers that run elsewhere: a scheduler, servers and
// workers, from start to end. When one of them fails all are ended, unless min_workers or
// may_lose_servers says that the others go on or restarts that it is started again, and also when a
// signal comes for us. A worker that is started again joins the job that runs, if that takes it in
// before its end. Not thread-safe.
class LocalJob {
 public:
  // Handles a line that a worker wrote to its standard output.
  using WorkerLine = std::function<void(int rank, std::string_view line)>;

  // Makes a job; nothing runs yet. `directory` is private and temporary, and outlives the job.
  // Without a handler the workers' lines are printed as all others are: "[worker 0] line" to the
  // stream on which it came.
  LocalJob(JobOptions options, std::string directory, WorkerLine worker_line = nullptr);
  ~LocalJob();
  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Starts the scheduler, waits until it listens, and starts the servers. Errors name the process.
  absl::Status StartDaemons();
  // Starts the next worker, from rank 0 on, with the variables that it needs to join. To be called
  // after StartDaemons.
  absl::Status StartWorker(const std::vector<std::string>& argv, bool wants_input = false);

  // Calls `task` inside Wait at `when`; a later call replaces an earlier one.
  void SetTimer(Clock::time_point when, std::function<void()> task);
  void WriteToWorker(int rank, std::string_view text) { group_.Write(worker(rank), text); }
  // Ends the job as if a process had failed with `code`.
  void Fail(int code, std::string_view why);

  // Supervises the job until all processes have ended, and makes sure that they do. Returns 0 when
  // all workers returned 0 but for those without which the job went on, else the code of the
  // process that failed first, or 128 + the signal that came for us. The last line names that
  // process: the others fail because of it, may end before it, and it may hang itself. The
  // scheduler's record says which was first; where it has none, the first process to end does. The
  // code is 1 where the process that failed did not end by itself.
  int Wait();
  // Prints a line of our own to standard error.
  void Say(std::string_view line) { Print(ProcessGroup::Stream::kError, options_.command, line); }
  // Ends a job whose Start... failed: says why, kills all processes, and returns the exit code.
  int GiveUp(const absl::Status& why);

  const std::string& scheduler_address() const { return scheduler_address_; }
  const std::string& job_id() const { return job_id_; }
  // Returns "http://127.0.0.1:7070/"; empty where there is no status page. To be called after
  // StartDaemons.
  const std::string& page_url() const { return page_url_; }
  // Returns the file with the secret that this job was given; empty where its settings have one.
  const std::string& token_file() const { return token_file_; }
  // Return the CPU time so far of all running processes of a role.
  std::chrono::nanoseconds SchedulerCpu() const { return group_.CpuTime(0); }
  std::chrono::nanoseconds ServersCpu() const;
  std::chrono::nanoseconds WorkersCpu() const;
  std::chrono::nanoseconds HostsCpu() const;
  // Returns the memory of all servers now.
  int64_t ServersResidentBytes() const;
  ProcessGroup::Events CountServersEvents() const;
  // Returns the file to which a server writes its metrics at its end, in jobs with `counts`.
  std::string MetricsFile(int server) const;

 private:
  enum class Phase {
    kRunning,
    kLingering,      // a process failed; the others may end by themselves
    kEndingWorkers,  // workers were told to end
    kEndingDaemons,  // all workers have ended, and the daemons were told to
  };

  static constexpr size_t kScheduler = 0;  // its number among the processes

  size_t host(int number) const { return 1 + static_cast<size_t>(options_.servers + number); }
  size_t worker(int rank) const { return host(options_.hosts + rank); }
  int workers_per_host() const { return options_.workers / std::max(options_.hosts, 1); }
  std::string HostAddress(int number) const;
  // Returns whether the scheduler means this process by the name of a node.
  bool IsNode(size_t process, const std::string& name) const;
  bool is_worker(size_t process) const { return process >= worker(0); }
  bool is_server(size_t process) const { return process > kScheduler && process < host(0); }
  bool WorkersAlive() const;
  std::string FailureFile() const { return directory_ + "/failure"; }
  std::string PagePortFile() const { return directory_ + "/http-port"; }
  std::string PortFile() const { return directory_ + "/port"; }
  void HandleText(size_t process, ProcessGroup::Stream stream, std::string_view text,
                  ProcessGroup::End end);
  void Print(ProcessGroup::Stream stream, std::string_view tag, std::string_view text,
             ProcessGroup::End end = ProcessGroup::End::kNewline);
  void Write(ProcessGroup::Stream stream, std::string_view text);
  // Returns the host of a worker, and how many of that host come before it.
  std::pair<size_t, int> PlaceOf(int rank) const;
  bool is_remote(size_t process) const { return is_worker(process) && !options_.remote.empty(); }
  std::string Advertised(const std::string& port) const;
  absl::Status MakeToken();
  absl::Status StartDaemon(const std::string& name, std::vector<std::string> argv);
  ProcessSpec DaemonSpec(const std::string& name, std::vector<std::string> argv) const;
  // Returns the command line of the scheduler, which is to listen at the address, and at the other
  // one with its page.
  std::vector<std::string> SchedulerArgv(const std::string& listen,
                                         const std::string& http_listen) const;
  std::vector<std::string> ServerArgv(int server) const;
  std::vector<std::string> HostArgv(int number) const;
  // A worker as it was asked for.
  struct WorkerCommand {
    std::vector<std::string> argv;
    bool wants_input = false;
  };
  // Returns the process of a worker that was started again so often, and what is to be written to
  // its input first.
  std::pair<ProcessSpec, std::string> WorkerSpec(int rank, int restarts) const;
  void ReadPageUrl();
  absl::Status AwaitPort(int watch_fd);
  // A process that has failed.
  struct Failure {
    size_t process;
    int code;  // 0 where it did not end by itself
  };
  void HandleEnd(size_t process, int code);
  // Counts the end of a process as a failure of the job.
  void HandleFailure(const Failure& ended);
  // Returns whether the job goes on although this process has ended with an error: it is a worker,
  // a host's daemon or a server, which a signal ended or which the job had gone on without, and
  // enough are left. Notes that, and says so.
  bool GoesOnWithout(const Failure& ended);
  bool GoesOnWithoutServer(const Failure& ended);
  // Returns whether the job goes on without one worker, or host, more.
  bool MayLoseOneMore() const;
  size_t NumMembers() const;  // hosts, or without them workers
  void SayItGoesOn(const Failure& ended);
  // Returns a worker's name, or that of a host's daemon, as the scheduler's log has it.
  std::string NodeName(size_t process) const;
  // Returns whether this is a process of a host, or its daemon, and the job goes on without that
  // host. Notes that, and starts the host again, if that may be, when all of its processes have
  // ended.
  bool IsEndOfLostHost(const Failure& ended);
  bool IsAnyAlive(size_t member) const;
  void EndHost(size_t daemon);
  std::vector<Failure>::iterator LossOf(size_t daemon);
  void StartHostAgain(size_t daemon);
  // Returns whether all nodes have joined, as far as the scheduler's log tells.
  bool MayHaveBegun() const { return has_begun_ || !options_.logs_begin; }
  // Returns whether a signal has ended the scheduler, or told it to end, so that another one can go
  // on with the job.
  bool IsLostScheduler(const Failure& ended) const;
  // Returns whether this is a server without which the job goes on, for a while at least.
  bool IsLostServer(const Failure& ended) const;
  // Returns whether the scheduler or a server was lost, and was started again. Notes that, and says
  // so.
  bool IsStartedAgain(const Failure& ended);
  // Plans to start a lost worker again, if that may be, and says so. Returns whether it does.
  bool IsToStartAgain(const Failure& ended);
  void StartWorkerAgain(size_t process);
  // Returns whether this is a worker that was started again and has failed by itself before the job
  // had taken it in. Nobody waits for such a one, so the job goes on without it.
  bool IsFailedNewcomer(const Failure& ended);
  // Notes that the job's program is at its end, which a newcomer could no longer join.
  void NoteEndOfProgram();
  // Reads which workers were taken in, as the scheduler's log tells.
  void NoteTakenIn(std::string_view text);
  // Reads which workers the job goes on without, as the scheduler's log tells.
  void NoteGone(std::string_view text);
  // Returns whether this is a worker that had left the job, which goes on, and whose program has
  // then ended well. Notes that, and says so.
  bool HasLeftOthers(const Failure& ended);
  // Does what is due of workers that are started again.
  void HandleRestarts(Clock::time_point now);
  // Returns the line with the restarts behind it, if there were any.
  std::string WithRestarts(std::string line) const;
  // Returns the host, or without hosts the worker, to which a process belongs; nothing for the
  // scheduler and the servers.
  std::optional<size_t> MemberOf(size_t process) const;
  std::string DescribeEnd(const Failure& ended) const;
  // Says, of a job that has not failed, what it has lost.
  void SayHowItEnded();
  // Returns the process that the scheduler has recorded in `names`; those that ended with errors
  // are looked at first.
  std::optional<Failure> FindCause(const std::vector<std::string>& names,
                                   const std::string& reason) const;
  void SayOthers(const Failure& cause);
  // Says why the job has failed. Returns false if it has not, or if that was said before.
  bool SayCause();
  // Handles a signal for us. Returns false when all processes are to be killed at once.
  bool HandleSignal(int signal);
  bool HandleTimeout();
  void Enter(Phase phase, std::chrono::milliseconds limit);
  void Signal(size_t process, int signal);
  void SignalAll(bool workers, int signal);
  // Reads which workers the job has ended without, as the scheduler's log tells. One that was
  // stopped meanwhile, and goes on now, may not hear that from the scheduler, which has ended.
  void NoteOutlived(std::string_view text);
  // Tells them to end, and kills them the second time.
  void EndOutlived();

  const JobOptions options_;
  const std::string directory_;
  const WorkerLine worker_line_;
  const std::string job_id_;
  std::string master_port_;
  int master_port_fd_ = -1;  // keeps the port free for the worker that will listen at it
  std::string scheduler_address_;
  int scheduler_port_fd_ = -1;  // keeps its port free for a scheduler that starts again
  std::string page_address_;    // HOST:PORT
  std::string page_url_;
  std::string token_;                   // made for this job; empty where the settings have one
  std::string token_file_;              // for commands that ask about the job
  std::vector<WorkerCommand> workers_;  // those that were started, by rank

  Phase phase_ = Phase::kRunning;
  int code_ = 0;
  std::vector<Failure> failures_;  // in the order of their ends
  // The first end of each member without which the job goes on, in their order. One that is started
  // again is none of them any more.
  std::vector<Failure> lost_;
  // The servers without which it does and that are not started again, likewise.
  std::vector<Failure> lost_servers_;
  // The ends of the processes that were started again, by process.
  std::map<size_t, std::vector<std::string>> restarts_;
  int num_restarts_ = 0;  // also those that are planned
  WorkerRestarts worker_restarts_;
  // Whether a worker has ended with 0, or the scheduler has said that the job is done. The others
  // leave, too, or have left, and nobody is taken in any more.
  bool is_at_end_ = false;
  std::set<size_t> gone_;  // workers, or daemons, without which the job goes on
  // A host that was lost, by its daemon.
  struct LostHost {
    bool is_to_come_back = false;  // a signal has ended a process of it, or 75 was its status
  };
  std::map<size_t, LostHost> lost_hosts_;
  // Whether all nodes have joined, as the scheduler's log tells. A job that lacks a worker before
  // that never begins.
  bool has_begun_ = false;
  // Whether the scheduler has said that it ends and its journal keeps the job.
  bool has_left_job_ = false;
  std::set<size_t> handed_over_;  // servers that have said that others do their work
  // Workers that the job has ended without, and when those that still run are ended.
  std::vector<size_t> outlived_;
  std::optional<Clock::time_point> outlived_until_;
  bool outlived_were_told_ = false;
  bool output_lost_ = false;
  LinePrinter printer_;
  EchoFilter echoes_;
  std::optional<Clock::time_point> deadline_;  // of the phase
  std::optional<Clock::time_point> timer_;
  std::function<void()> timer_task_;
  ProcessGroup group_;  // last: its destructor still hands over lines
};

// Returns the path of a program beside this one.
std::string ProgramBeside(const std::string& name);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_LOCAL_JOB_H_
