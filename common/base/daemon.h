#ifndef BANDONEON_COMMON_BASE_DAEMON_H_
#define BANDONEON_COMMON_BASE_DAEMON_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/config.h"

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

// SIGTERM and SIGINT as a descriptor to poll. Before the first thread, so that all inherit the
// mask.
int BlockEndSignals();

// Runs `job` on a thread of its own until it returns. Where a signal comes first, on `signal_fd`, calls
// `end`, after which `job` returns soon. Whether one did.
bool RunUntilSignal(int signal_fd, const std::function<void()>& job,
                    const std::function<void()>& end);

// What came of one job.
struct ServedJob {
  absl::Status result;
  bool started = false;  // the job had begun
  bool signalled = false;
};
// Whether another job may end otherwise. What was wrong before one began, and was not that others
// did not come, is wrong with this daemon.
bool MayServeNext(const ServedJob& served);

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_DAEMON_H_
