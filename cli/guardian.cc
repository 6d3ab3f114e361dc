#include "cli/guardian.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "cli/process_group.h"

namespace bdn::cli {
namespace {

[[noreturn]] void Guard(pid_t front, const std::function<int(const std::string&)>& body,
                        const std::string& directory) {
  // A process group of its own: so the terminal's Ctrl-C goes to the front process alone, which
  // passes it on once.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGUSR2);
  // The front process may have died before the line above; then no signal comes.
  const int code = getppid() == front ? body(directory) : 1;
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  fflush(nullptr);
  _exit(code);
}

// Passes signals on to the guardian until it has ended; returns its wait status.
int WaitForGuardian(pid_t guardian, const sigset_t& signals) {
  while (true) {
    int status;
    // Asked before each wait: SIGCHLD is blocked, so an end that comes in between is kept for
    // sigwaitinfo.
    if (waitpid(guardian, &status, WNOHANG) == guardian) return status;
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal > 0 && signal != SIGCHLD) kill(guardian, signal);
  }
}

}  // namespace

int RunGuarded(const std::function<int(const std::string& directory)>& body) {
  std::error_code ignored;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(ignored);
  std::string directory = (parent.empty() ? "/tmp" : parent) / "bandoneon-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    fprintf(stderr, "bandoneon: cannot make %s: %s\n", directory.c_str(), strerror(errno));
    return 1;
  }
  // If the guardian is killed, its children come to this process, which ends them below.
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  // Blocked before the fork, so that the guardian misses no signal.
  const sigset_t signals = SupervisedSignals();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &signals, &before);

  fflush(nullptr);
  const pid_t front = getpid();
  const pid_t guardian = fork();
  if (guardian == 0) Guard(front, body, directory);
  int code = 1;
  if (guardian < 0) {
    fprintf(stderr, "bandoneon: cannot fork: %s\n", strerror(errno));
  } else {
    code = ExitCode(WaitForGuardian(guardian, signals));
  }
  KillDescendants(nullptr);
  std::filesystem::remove_all(directory, ignored);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return code;
}

}  // namespace bdn::cli
