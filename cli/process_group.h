#ifndef BANDONEON_CLI_PROCESS_GROUP_H_
#define BANDONEON_CLI_PROCESS_GROUP_H_

#include <signal.h>
#include <sys/types.h>

#include <array>
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

// A program to run as a child.
struct ProcessSpec {
  std::string name;               // "worker 0", the tag of its lines
  std::vector<std::string> argv;  // argv[0] is looked for on the PATH
  Variables variables;            // override this process's environment
  bool wants_input = false;  // whether its standard input is a pipe for Write; else it is `input`
  int input = -1;            // a descriptor for its standard input; -1: /dev/null
};

// Returns the memory of a process ("self", or its id) now; of pages that several processes have,
// its share. 0 once it has ended.
int64_t ResidentBytesOf(const std::string& process);

// The children of this process, each in a process group of its own, whose lines and ends come, with
// the signals for us, as one stream of events. Nothing polls: Next blocks in the kernel. A child
// dies with us, however we end (PR_SET_PDEATHSIG); its own children then come to this process,
// which is made a subreaper, or to the one above it (guardian.h).
//
// Not thread-safe: owned by the thread that made it, and the process has no other thread while a
// child is started. One at a time in a process, as it owns the process's SIGCHLD.
class ProcessGroup {
 public:
  enum class Stream { kOut, kError };
  // The end of a piece of text. kNone: the line goes on with the next piece.
  enum class End { kNewline, kReturn, kNone };
  // Handles a line, or a piece of one, without its end. `process` counts from 0 in the order of
  // Start.
  using LineHandler =
      std::function<void(size_t process, Stream stream, std::string_view text, End end)>;

  // An event.
  struct Event {
    enum class Kind {
      kEnded,     // `process` ended with `code`
      kSignal,    // `signal` (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR2) came for us
      kReadable,  // the descriptor that was given to Next is readable
      kLines,     // lines were handed over
      kTimeout,   // `deadline` passed
    };
    Kind kind = Kind::kTimeout;
    size_t process = 0;
    int code = 0;  // exit status, or 128 + the signal that ended it
    int signal = 0;
  };

  // Makes a group without children. A line that has not ended for `patience` is handed over as far
  // as it has come, as is one that ends with a carriage return: these are progress bars and
  // prompts. 0: all lines are handed over whole.
  explicit ProcessGroup(LineHandler on_line, std::chrono::milliseconds patience = {});
  // Kills the children that still run.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Starts a child and returns its number. NotFound names a program that cannot be run.
  absl::StatusOr<size_t> Start(const ProcessSpec& spec);
  // Starts a child anew in the place of one that has ended, whose number it gets. Hands over first
  // the rest of the former's output, and kills what is left of its process group. After NotFound
  // the number is of the former still. REQUIRES: the former's end was told by Next.
  absl::Status StartAgain(size_t process, const ProcessSpec& spec);

  // Waits for the next event and returns it; lines are handed to the handler meanwhile. -1 watches
  // no descriptor.
  Event Next(std::optional<Clock::time_point> deadline, int watched = -1);

  // Writes to a child's standard input. Text that it can no longer take is dropped.
  void Write(size_t process, std::string_view text);
  // Sends a signal to a running child and all of its process group. Does nothing when it has ended.
  void Signal(size_t process, int signal);
  // Ends every descendant with SIGKILL, also grandchildren that left their group, reaps them, and
  // hands over the lines that they left. Idempotent.
  void KillAll();

  size_t size() const { return children_.size(); }
  bool alive(size_t process) const { return children_[process].alive; }
  size_t num_alive() const;
  pid_t pid(size_t process) const { return children_[process].pid; }
  const std::string& name(size_t process) const { return children_[process].name; }
  // Returns the CPU time so far of all threads of a child that has not been reaped.
  std::chrono::nanoseconds CpuTime(size_t process) const;
  // Returns a child's memory now; 0 when it has been reaped.
  int64_t ResidentBytes(size_t process) const;
  // Counts of a child so far, of all its threads; 0 once it has ended.
  struct Events {
    int64_t page_faults = 0;
    int64_t context_switches = 0;
  };
  Events CountEvents(size_t process) const;

 private:
  // The output of a child on one stream.
  struct Pipe {
    int fd = -1;
    std::string partial;      // the part of an unended line that was not handed over
    Clock::time_point since;  // when the first byte of that came
  };
  struct Child {
    std::string name;
    pid_t pid = -1;
    bool alive = false;
    int input = -1;
    std::array<Pipe, 2> pipes;  // by Stream
  };

  static absl::StatusOr<Child> Spawn(const ProcessSpec& spec);
  // Kills the processes that a child which has ended left in its process group.
  void KillGroupOf(pid_t former);
  // Reaps children that have ended, until one of ours is met; returns true, with its event, for
  // that.
  bool ReapOne(Event* event);
  bool ReadSignal(Event* event);
  void ReadPipe(size_t process, Stream stream);
  // Hands over the lines of `text` that have ended, and returns the rest.
  std::string HandOverEnded(size_t process, Stream stream, std::string text);
  // Hands over the parts of lines that have waited too long, and returns whether there were any;
  // sets `next` to the time when others will have.
  bool HandOverPartial(std::optional<Clock::time_point>* next);
  void ClosePipe(size_t process, Stream stream);

  const LineHandler on_line_;
  const std::chrono::milliseconds patience_;
  std::vector<Child> children_;
  int signal_fd_ = -1;
};

// Ends every descendant of this process with SIGKILL and reaps it. Calls `on_reaped` (which may be
// null) for each direct child. REQUIRES: this process is a subreaper.
void KillDescendants(const std::function<void(pid_t, int wait_status)>& on_reaped);

// Returns SIGCHLD and the signals that end a job: SIGINT, SIGTERM, SIGQUIT, SIGUSR2, and SIGHUP
// unless it is ignored (nohup).
sigset_t SupervisedSignals();

// Returns 3 for exit(3), 128 + the signal for a killed process.
int ExitCode(int wait_status);
// Returns "exited with code 3" or "was killed by signal 9 (Killed)".
std::string DescribeCode(int code);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_PROCESS_GROUP_H_
