#include "common/base/daemon.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "common/base/descriptors.h"
#include "common/base/log.h"
#include "common/base/status.h"

namespace bdn {
namespace {

bool Take(const char* flag, std::vector<std::string>* args) {
  const auto found = std::find(args->begin(), args->end(), flag);
  if (found == args->end()) return false;
  args->erase(found);
  return true;
}

absl::StatusOr<int> Run(const Daemon& daemon, std::vector<std::string> args) {
  if (Take("--help", &args)) {
    std::printf("%s%s", daemon.usage, Config::Help(daemon.settings).c_str());
    return 0;
  }
  if (Take("--version", &args)) {
    std::printf("%s %s\n", daemon.name, daemon.version.c_str());
    return 0;
  }
  const bool check_only = Take("--check-config", &args);
  BDN_ASSIGN_OR_RETURN(const Config config,
                       Config::Load(daemon.settings, args, ReadEnvironment(), daemon.elsewhere));
  BDN_RETURN_IF_ERROR(daemon.check(config));
  if (!check_only) {
    RaiseDescriptorLimit();
    return daemon.serve(config);
  }
  std::printf("%s", config.ToString().c_str());
  return 0;
}

}  // namespace

int RunDaemon(const Daemon& daemon, std::vector<std::string> args) {
  const absl::StatusOr<int> code = Run(daemon, std::move(args));
  if (code.ok()) return *code;
  std::fprintf(stderr, "%s: %s\n", daemon.name, std::string(code.status().message()).c_str());
  return 2;
}

int BlockEndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

bool RunUntilSignal(int signal_fd, const std::function<void()>& job,
                    const std::function<void()>& end) {
  const int over_fd = eventfd(0, EFD_CLOEXEC);
  std::thread thread([&] {
    job();
    const uint64_t one = 1;
    (void)!write(over_fd, &one, sizeof(one));
  });
  pollfd fds[] = {{signal_fd, POLLIN, 0}, {over_fd, POLLIN, 0}};
  while (poll(fds, 2, -1) < 0) continue;  // interrupted
  const bool signalled = fds[1].revents == 0;
  if (signalled) {
    LogInfo("ending on a signal");
    end();
  }
  thread.join();
  close(over_fd);
  return signalled;
}

bool MayServeNext(const ServedJob& served) {
  if (served.signalled) return false;
  const absl::Status& result = served.result;
  return served.started || absl::IsAborted(result) || absl::IsUnavailable(result) ||
         absl::IsDeadlineExceeded(result);
}

}  // namespace bdn
