#include "cli/own_command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "common/base/status.h"

namespace bdn::cli {
namespace {

using Clock = std::chrono::steady_clock;

// The signals that a wait for a child takes, blocked as long as this lives.
class WaitSignals {
 public:
  WaitSignals() {
    sigemptyset(&set_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM}) sigaddset(&set_, signal);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  ~WaitSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  WaitSignals(const WaitSignals&) = delete;
  WaitSignals& operator=(const WaitSignals&) = delete;

  // Returns the signal that came; 0 where none did until `until`.
  int Next(std::optional<Clock::time_point> until) const {
    if (!until) return std::max(0, sigwaitinfo(&set_, nullptr));
    const auto left =
        std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(*until - Clock::now()));
    const timespec time = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    return std::max(0, sigtimedwait(&set_, nullptr, &time));
  }
  const sigset_t& before() const { return before_; }

 private:
  sigset_t set_;
  sigset_t before_;
};

// Becomes the command. Its lines go to standard error, because standard output is this command's
// result.
[[noreturn]] void Become(const std::vector<std::string>& command,
                         std::span<const char* const> without, const sigset_t& signals) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  for (const char* const variable : without) unsetenv(variable);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

}  // namespace

int CommandEnd::code() const {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

absl::StatusOr<CommandEnd> RunOwnCommand(const std::vector<std::string>& argv,
                                         std::span<const char* const> without,
                                         std::chrono::milliseconds limit) {
  const WaitSignals signals;
  const pid_t child = fork();
  if (child == 0) Become(argv, without, signals.before());
  if (child < 0) return Internal("no process could be made: %s", strerror(errno));
  std::optional<Clock::time_point> until;
  if (limit.count() > 0) until = Clock::now() + limit;
  CommandEnd ended;
  while (waitpid(child, &ended.status, WNOHANG) == 0) {
    const int signal = signals.Next(until);
    if (signal == SIGCHLD) continue;
    if (signal == 0 && !(until && Clock::now() >= *until)) continue;  // interrupted
    ended.by_limit = ended.by_limit || signal == 0;
    if (ended.by_signal == 0) ended.by_signal = signal;
    until.reset();
    kill(child, SIGTERM);
  }
  return ended;
}

}  // namespace bdn::cli
