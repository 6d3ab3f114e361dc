#ifndef BANDONEON_CLI_PROCESS_GROUP_H_
#define BANDONEON_CLI_PROCESS_GROUP_H_

#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn::cli {

using Clock = std::chrono::steady_clock;
using Variables = std::vector<std::pair<std::string, std::string>>;

// Something to run as a child.
struct ProcessSpec {
  std::string name;               // "worker 0": what its lines are tagged with
  std::vector<std::string> argv;  // argv[0] is looked for on the PATH
  Variables variables;            // over this process's environment
  bool wants_input = false;       // whether its standard input is a pipe for Write; else `input`
  int input = -1;                 // a descriptor for its standard input; -1: /dev/null
};

// Memory of a process ("self", or its id) that is there now, of pages that several have each one's
// share; 0 once it has ended.
int64_t ResidentBytesOf(const std::string& process);

// Children of this process, each in a process group of its own, with the lines they print and the
// signals that come for us, as one stream of events. Nothing polls: Next blocks in the kernel.
// A child dies with us, however we end (PR_SET_PDEATHSIG); its own children then come to this
// process, which is made a subreaper, or to the one above it (see guardian.h).
//
// Not thread-safe: owned by the thread that made it, of a process that has no other while one
// starts. One at a time in a process: it owns the process's SIGCHLD.
class ProcessGroup {
 public:
  enum class Stream { kOut, kError };
  // What ends a piece of text. kNone: nothing yet; the line goes on with the next piece.
  enum class End { kNewline, kReturn, kNone };
  // A line, or a piece of one, without its end. `process` counts from 0 in the order of Start.
  using LineHandler =
      std::function<void(size_t process, Stream stream, std::string_view text, End end)>;

  struct Event {
    enum class Kind {
      kEnded,     // `process` ended with `code`
      kSignal,    // `signal` (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR2) came for us
      kReadable,  // the descriptor given to Next is readable
      kLines,     // lines were handed over
      kTimeout,   // `deadline` passed
    };
    Kind kind = Kind::kTimeout;
    size_t process = 0;
    int code = 0;  // exit status, or 128 + the signal that ended it
    int signal = 0;
  };

  // A line that has not ended for `patience` is handed over as far as it is there, as is one that
  // ends with a carriage return: progress bars and prompts. 0: lines are handed over whole.
  explicit ProcessGroup(LineHandler on_line, std::chrono::milliseconds patience = {});
  // Kills what still runs.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Starts a child and returns its number. NotFound names a program that cannot be run.
  absl::StatusOr<size_t> Start(const ProcessSpec& spec);

  // The next thing that happens; lines are handed to the handler meanwhile. -1 watches no
  // descriptor.
  Event Next(std::optional<Clock::time_point> deadline, int watched = -1);

  // Writes to a child's standard input. What it cannot take any more is dropped.
  void Write(size_t process, std::string_view text);
  // To a running child and all of its process group. Nothing when it has ended.
  void Signal(size_t process, int signal);
  // Ends every descendant with SIGKILL, grandchildren that left their group too, reaps them, and
  // hands over the lines they left behind. Idempotent.
  void KillAll();

  size_t size() const { return children_.size(); }
  bool alive(size_t process) const { return children_[process].alive; }
  size_t num_alive() const;
  pid_t pid(size_t process) const { return children_[process].pid; }
  const std::string& name(size_t process) const { return children_[process].name; }
  // CPU time so far of all threads of a child that has not been reaped.
  std::chrono::nanoseconds CpuTime(size_t process) const;
  // Its memory now; 0 when it has been reaped.
  int64_t ResidentBytes(size_t process) const;
  // So far, of all its threads; 0 once it has ended.
  struct Events {
    int64_t page_faults = 0;
    int64_t context_switches = 0;
  };
  Events CountEvents(size_t process) const;

 private:
  struct Pipe {
    int fd = -1;
    std::string partial;  // of the line that has not ended yet, what was not handed over
    Clock::time_point since;  // when its first byte came
  };
  struct Child {
    std::string name;
    pid_t pid = -1;
    bool alive = false;
    int input = -1;
    Pipe pipes[2];  // by Stream
  };

  // Reaps every child that has ended; true, and `event`, for the first of ours.
  bool ReapOne(Event* event);
  bool ReadSignal(Event* event);
  void ReadPipe(size_t process, Stream stream);
  // Hands over all of `text` that has ended; the rest.
  std::string HandOverEnded(size_t process, Stream stream, std::string text);
  // Hands over what has waited too long, and tells whether there was any; `next`: when there will be.
  bool HandOverPartial(std::optional<Clock::time_point>* next);
  void ClosePipe(size_t process, Stream stream);

  const LineHandler on_line_;
  const std::chrono::milliseconds patience_;
  std::vector<Child> children_;
  int signal_fd_ = -1;
};

// Ends every descendant of this process with SIGKILL and reaps it. REQUIRES: it is a subreaper.
// Calls `on_reaped` (may be null) for each direct child.
void KillDescendants(const std::function<void(pid_t, int wait_status)>& on_reaped);

// SIGCHLD and the signals that end a job: SIGINT, SIGTERM, SIGQUIT, SIGUSR2, and SIGHUP unless it
// is ignored (nohup).
sigset_t SupervisedSignals();

// 3 for exit(3), 128 + the signal for a killed process.
int ExitCode(int wait_status);
// "exited with code 3", "was killed by signal 9 (Killed)".
std::string DescribeCode(int code);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_PROCESS_GROUP_H_
