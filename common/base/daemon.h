#ifndef BANDONEON_COMMON_BASE_DAEMON_H_
#define BANDONEON_COMMON_BASE_DAEMON_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/memory_reserve.h"
#include "common/base/supervisor.h"

// The parts that the daemons' main() functions share.

namespace bdn {

// The exit code of a daemon, or a worker's program, that the job has gone on without, because it
// was stopped or cut off for longer than its lease: EX_TEMPFAIL of sysexits.h. It may be started
// again.
inline constexpr int kStartMeAgain = 75;

// The description of one daemon, from which RunDaemon makes a program.
struct Daemon {
  const char* name;     // "bandoneon-server"
  const char* usage;    // before the settings in --help
  std::string version;  // after the name in --version
  std::span<const Setting> settings;
  // Other daemons' settings, which the environment may hold besides.
  std::span<const Setting> elsewhere;
  // Returns whether the settings fit together: all that --check-config does beyond reading them.
  std::function<absl::Status(const Config&)> check;
  // Runs until the job's end and returns the exit code. An error is printed, and the exit code is
  // 2.
  std::function<absl::StatusOr<int>(const Config&)> serve;
};

// Answers --help, --version and --check-config; otherwise reads the settings, raises the limit of
// open descriptors and serves. Returns the process's exit code.
int RunDaemon(const Daemon& daemon, std::vector<std::string> args);

// The loop in which a daemon's main thread waits for the job, an end signal or a time. While it
// waits it tells the supervisor that the daemon is alive. Made and used by main() alone, once in a
// process. From then on the first SIGTERM or SIGINT is reported by Wait, and the second ends the
// process at once, with 128 plus its number, whatever its threads do or wait for. Not thread-safe.
class MainLoop {
 public:
  enum class Woken { kByEvent, kBySignal, kByTime };

  // Borrows `clock`, and installs the handlers of SIGTERM and SIGINT.
  explicit MainLoop(const Clock* clock);
  ~MainLoop();
  MainLoop(const MainLoop&) = delete;
  MainLoop& operator=(const MainLoop&) = delete;

  const Supervisor& supervisor() const { return supervisor_; }

  // Waits until `event_fd` is readable (which it leaves so), SIGTERM or SIGINT comes, memory has
  // run out, or the clock says `deadline`. The signal is reported once. `pulse`, which may be null,
  // takes the locks that the daemon's work needs: the supervisor hears of a daemon only while
  // `pulse` returns.
  Woken Wait(int event_fd, absl::Time deadline, const std::function<void()>& pulse);

  // Lets the running job end by itself for `timeout` (0: not at all) after Wait reported a signal,
  // and says so in the log and to the supervisor. Returns kByEvent when the job has ended.
  Woken Drain(int event_fd, absl::Duration timeout, const std::function<void()>& pulse);

  // Returns "SIGTERM", "SIGINT", or "a lack of memory"; null until one has come. Wait reports a
  // lack of memory as it reports a signal, but Drain does not wait after it.
  const char* signal() const { return signal_; }
  bool lacks_memory() const { return lacks_memory_; }

  // Starts a timer of one minute, in which the process is to end or to be ready for its next job;
  // EndedInTime stops it. A process that is not in time says so and ends with exit code 1.
  void BeginToEnd() const;
  void EndedInTime() const;
  // Ends the process with exit code 1 where memory has run out, without tearing down what it holds:
  // a library that found no memory for one of its threads (gRPC) would wait for that thread for
  // ever. To be called when everything is told and written.
  void EndIfMemoryIsOut() const;

 private:
  void TakeSignal();

  const Clock* const clock_;
  const int signal_fd_;
  const Supervisor supervisor_{Supervisor::FromEnvironment()};
  MemoryReserve reserve_;
  absl::Time next_alive_;
  absl::Time next_look_;  // when memory is looked at next
  const char* signal_ = nullptr;
  bool lacks_memory_ = false;
};

// Returns the error that all others are told when a signal (Unavailable) or a lack of memory
// (ResourceExhausted) stops this process.
absl::Status WhyStopped(const std::string& name, const MainLoop& main);

// The outcome of one job.
struct ServedJob {
  absl::Status result;
  bool started = false;  // the job had begun
};
// Returns whether the next job may end otherwise. A failure before a job began, except that other
// processes did not come, is a fault of this daemon, and would come again.
bool MayServeNext(const ServedJob& served);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_DAEMON_H_
