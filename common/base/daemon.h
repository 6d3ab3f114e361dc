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

// What the daemons' main() have in common.

namespace bdn {

struct Daemon {
  const char* name;     // "bandoneon-server"
  const char* usage;    // before the settings in --help
  std::string version;  // after the name in --version
  std::span<const Setting> settings;
  std::span<const Setting> elsewhere;  // what the environment may hold besides
  // Whether the settings fit together: all that --check-config does beyond reading them.
  std::function<absl::Status(const Config&)> check;
  // Runs until the job's end; the exit code. An error is printed, and the exit code is 2.
  std::function<absl::StatusOr<int>(const Config&)> serve;
};

// Answers --help, --version and --check-config, reads the settings, raises the limit of open
// descriptors, serves. The process's exit code.
int RunDaemon(const Daemon& daemon, std::vector<std::string> args);

// What a daemon's main thread waits for: the job, an end signal, time. While it waits it tells the
// supervisor that the daemon is alive. Made and used by main() alone, once in a process: from then on the
// first SIGTERM or SIGINT is told here, and the second ends the process at once, with 128 and its number,
// whatever its threads do or wait for.
class MainLoop {
 public:
  enum class Woken { kByEvent, kBySignal, kByTime };

  // `clock` is borrowed.
  explicit MainLoop(const Clock* clock);
  ~MainLoop();
  MainLoop(const MainLoop&) = delete;
  MainLoop& operator=(const MainLoop&) = delete;

  const Supervisor& supervisor() const { return supervisor_; }

  // Until `event_fd` is readable (and is left so), SIGTERM or SIGINT comes, or the clock says `deadline`.
  // That signal is told here once.
  // `pulse` takes the locks that the daemon's work needs: the supervisor hears of a daemon only while
  // that returns. May be null.
  Woken Wait(int event_fd, absl::Time deadline, const std::function<void()>& pulse);

  // After Wait said that a signal came: lets the job that runs end by itself for `timeout`, 0 for not at
  // all, and says so in the log and to the supervisor. kByEvent when it has.
  Woken Drain(int event_fd, absl::Duration timeout, const std::function<void()>& pulse);

  // "SIGTERM" or "SIGINT", or "a lack of memory", which Wait tells of as of a signal, after which nothing is
  // drained; null until one has come.
  const char* signal() const { return signal_; }
  bool lacks_memory() const { return lacks_memory_; }

  // From now on the process is to end, or to be ready for its next job, within a minute: it says so, and ends
  // with 1, where it is not. Until EndedInTime.
  void BeginToEnd() const;
  void EndedInTime() const;
  // To be called when all is told and written. Where memory has run out the process ends here, with 1, and what
  // it holds is not torn down: a library that had none for a thread of its own (gRPC) waits for its end for ever.
  void EndIfMemoryIsOut() const;

 private:
  void TakeSignal();

  const Clock* const clock_;
  const int signal_fd_;
  const Supervisor supervisor_{Supervisor::FromEnvironment()};
  MemoryReserve reserve_;
  absl::Time next_alive_;
  absl::Time next_look_;  // for memory
  const char* signal_ = nullptr;
  bool lacks_memory_ = false;
};

// Of a process that a signal stops, or a lack of memory: Unavailable or ResourceExhausted, for all to hear.
absl::Status WhyStopped(const std::string& name, const MainLoop& main);

// What came of one job.
struct ServedJob {
  absl::Status result;
  bool started = false;  // the job had begun
};
// Whether another job may end otherwise. What was wrong before one began, and was not that others
// did not come, is wrong with this daemon.
bool MayServeNext(const ServedJob& served);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_DAEMON_H_
