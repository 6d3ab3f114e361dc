#include "common/base/daemon.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/time/clock.h"
#include "common/base/descriptors.h"
#include "common/base/log.h"
#include "common/base/log_context.h"
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
  LogFormat format;
  BDN_RETURN_IF_ERROR(ParseLogFormat(config.Text("log-format"), &format));
  if (!check_only) SetLogFormat(format);
  BDN_RETURN_IF_ERROR(daemon.check(config));
  if (!check_only) {
    RaiseDescriptorLimit();
    return daemon.serve(config);
  }
  std::printf("%s", config.ToString().c_str());
  return 0;
}

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

int BlockEndSignals() {
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

// For poll: never before the time is over; -1 for ever.
int MillisecondsUntil(absl::Duration left) {
  if (left == absl::InfiniteDuration()) return -1;
  return static_cast<int>(std::clamp(std::ceil(absl::ToDoubleMilliseconds(left)), 0.0, 1e9));
}

}  // namespace

int RunDaemon(const Daemon& daemon, std::vector<std::string> args) {
  const absl::StatusOr<int> code = Run(daemon, std::move(args));
  if (code.ok()) return *code;
  const std::string why(code.status().message());
  if (CurrentLogFormat() == LogFormat::kJson) {
    const std::string line = JsonLogLine(absl::Now(), LogLevel::kError, daemon.name, why);
    std::fprintf(stderr, "%s\n", line.c_str());
    return 2;
  }
  std::fprintf(stderr, "%s: %s\n", daemon.name, why.c_str());
  return 2;
}

MainLoop::MainLoop(const Clock* clock)
    : clock_(clock),
      signal_fd_(BlockEndSignals()),
      next_alive_(supervisor_.alive_interval() == absl::InfiniteDuration() ? absl::InfiniteFuture()
                                                                           : absl::InfinitePast()) {
}

MainLoop::~MainLoop() { close(signal_fd_); }

MainLoop::Woken MainLoop::Wait(int event_fd, absl::Time deadline,
                               const std::function<void()>& pulse) {
  for (;;) {
    const absl::Time now = clock_->Now();
    if (now >= next_alive_) {
      if (pulse != nullptr) pulse();
      supervisor_.Alive();
      next_alive_ = now + supervisor_.alive_interval();
    }
    pollfd fds[] = {{event_fd, POLLIN, 0}, {signal_ == nullptr ? signal_fd_ : -1, POLLIN, 0}};
    const int ready = poll(fds, 2, MillisecondsUntil(std::min(deadline, next_alive_) - now));
    if (ready < 0) continue;  // interrupted
    if (fds[0].revents != 0) return Woken::kByEvent;
    if (fds[1].revents != 0) {
      TakeSignal();
      return Woken::kBySignal;
    }
    if (clock_->Now() >= deadline) return Woken::kByTime;
  }
}

MainLoop::Woken MainLoop::Drain(int event_fd, absl::Duration timeout,
                                const std::function<void()>& pulse) {
  if (timeout <= absl::ZeroDuration()) return Woken::kByTime;
  LogInfo("the job that runs has %s to end by itself", absl::FormatDuration(timeout));
  supervisor_.Status("draining: a job runs");
  return Wait(event_fd, clock_->Now() + timeout, pulse);
}

void MainLoop::TakeSignal() {
  signalfd_siginfo info = {};
  (void)!read(signal_fd_, &info, sizeof(info));
  signal_ = info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT";
  // A handler, for the default would not end the first process of a container.
  struct sigaction end = {};
  end.sa_handler = [](int number) { _exit(128 + number); };
  sigaction(SIGTERM, &end, nullptr);
  sigaction(SIGINT, &end, nullptr);
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  supervisor_.Stopping();
}

bool MayServeNext(const ServedJob& served) {
  const absl::Status& result = served.result;
  return served.started || absl::IsAborted(result) || absl::IsUnavailable(result) ||
         absl::IsDeadlineExceeded(result);
}

}  // namespace bdn
