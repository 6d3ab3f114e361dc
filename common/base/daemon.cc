#include "common/base/daemon.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include "absl/time/clock.h"
#include "common/base/descriptors.h"
#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/status.h"

namespace bdn {
namespace {

constexpr unsigned kSecondsToEnd = 60;
constexpr absl::Duration kLookInterval = absl::Seconds(1);  // between two looks at memory

// Removes a flag from the arguments; returns whether it was there.
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

// A signal handler is given nothing but the signal's number, so its state lies here; it belongs to
// the process's one MainLoop. The first signal publishes its number by the descriptor; the next one
// ends the process, whatever its threads wait for.
std::atomic<int> first_signal{0};
std::atomic<int> signal_fd{-1};

void OnEndSignal(int number) {
  const int saved = errno;
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, number)) _exit(128 + number);
  const uint64_t one = 1;
  (void)!write(signal_fd.load(), &one, sizeof(one));
  errno = saved;
}

// Installs a handler instead of the default action, which would not end the first process of a
// container.
int HandleEndSignals() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  signal_fd.store(fd);
  struct sigaction action = {};
  action.sa_handler = &OnEndSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  return fd;
}

// Converts for poll: rounded up, so that it never wakes before the time is over; -1 waits for ever.
int MillisecondsUntil(absl::Duration left) {
  if (left == absl::InfiniteDuration()) return -1;
  return static_cast<int>(std::clamp(std::ceil(absl::ToDoubleMilliseconds(left)), 0.0, 1e9));
}

}  // namespace

int RunDaemon(const Daemon& daemon, std::vector<std::string> args) {
  const absl::StatusOr<int> code = Run(daemon, std::move(args));
  if (code.ok()) return *code;
  const std::string why(code.status().message());
  LogPlain(CurrentLogFormat() == LogFormat::kJson
               ? JsonLogLine(absl::Now(), LogLevel::kError, daemon.name, why) + "\n"
               : absl::StrFormat("%s: %s\n", daemon.name, why));
  return 2;
}

MainLoop::MainLoop(const Clock* clock)
    : clock_(clock),
      signal_fd_(HandleEndSignals()),
      next_alive_(supervisor_.alive_interval() == absl::InfiniteDuration() ? absl::InfiniteFuture()
                                                                           : absl::InfinitePast()),
      next_look_(MemoryReserve::IsLimited() ? absl::InfinitePast() : absl::InfiniteFuture()) {}

// The handler stays installed: whatever is left to be done, the next signal ends the process.
MainLoop::~MainLoop() {
  signal_fd.store(-1);
  close(signal_fd_);
}

MainLoop::Woken MainLoop::Wait(int event_fd, absl::Time deadline,
                               const std::function<void()>& pulse) {
  for (;;) {
    const absl::Time now = clock_->Now();
    if (now >= next_alive_) {
      // The pulse comes before the message: a daemon whose locks are stuck hangs here, and the
      // supervisor hears nothing.
      if (pulse != nullptr) pulse();
      supervisor_.Alive();
      next_alive_ = now + supervisor_.alive_interval();
    }
    if (now >= next_look_) {
      reserve_.Look();
      next_look_ = now + kLookInterval;
    }
    // A descriptor that was reported once is left out (-1), or poll would return at once from then
    // on.
    pollfd fds[] = {{event_fd, POLLIN, 0},
                    {signal_ == nullptr ? signal_fd_ : -1, POLLIN, 0},
                    {lacks_memory_ ? -1 : reserve_.fd(), POLLIN, 0}};
    const int ready =
        poll(fds, 3, MillisecondsUntil(std::min({deadline, next_alive_, next_look_}) - now));
    if (ready < 0) continue;  // interrupted
    if (fds[0].revents != 0) return Woken::kByEvent;
    if (fds[1].revents != 0) {
      TakeSignal();
      return Woken::kBySignal;
    }
    if (fds[2].revents != 0) {
      lacks_memory_ = true;
      signal_ = "a lack of memory";
      LogError(
          "%s",
          "this process is out of memory: it tells the others and ends. Give it more (ulimit -v, "
          "the container's limit), or more servers to share it, or smaller models");
      return Woken::kBySignal;
    }
    if (clock_->Now() >= deadline) return Woken::kByTime;
  }
}

MainLoop::Woken MainLoop::Drain(int event_fd, absl::Duration timeout,
                                const std::function<void()>& pulse) {
  if (timeout <= absl::ZeroDuration() || lacks_memory_) return Woken::kByTime;
  LogInfo("the job that runs has %s to end by itself", absl::FormatDuration(timeout));
  supervisor_.Status("draining: a job runs");
  return Wait(event_fd, clock_->Now() + timeout, pulse);
}

void MainLoop::TakeSignal() {
  signal_ = first_signal.load() == SIGTERM ? "SIGTERM" : "SIGINT";
  supervisor_.Stopping();
}

void MainLoop::BeginToEnd() const {
  // An alarm needs no thread, which a process that is short of memory could not start.
  struct sigaction action = {};
  action.sa_handler = [](int) {
    constexpr std::string_view kText =
        "bandoneon: this process did not come to its end within a minute, and ends now\n";
    // Nobody may read standard error any more; a write that blocks would hold up the end for ever.
    pollfd standard_error = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&standard_error, 1, 0) == 1) (void)!write(STDERR_FILENO, kText.data(), kText.size());
    _exit(1);
  };
  sigaction(SIGALRM, &action, nullptr);
  alarm(kSecondsToEnd);
}

void MainLoop::EndedInTime() const {
  alarm(0);
  MemoryReserve::ExpectNoMessages();
}

void MainLoop::EndIfMemoryIsOut() const {
  if (!lacks_memory_) return;
  (void)FlushLog(absl::Seconds(1));
  _exit(1);
}

absl::Status WhyStopped(const std::string& name, const MainLoop& main) {
  if (main.lacks_memory()) return ResourceExhausted("%s is out of memory", name);
  return Unavailable("%s was stopped by %s", name, main.signal());
}

bool MayServeNext(const ServedJob& served) {
  const absl::Status& result = served.result;
  return served.started || absl::IsAborted(result) || absl::IsUnavailable(result) ||
         absl::IsDeadlineExceeded(result);
}

}  // namespace bdn
