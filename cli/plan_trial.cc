#include "cli/plan_trial.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "trace/job_trace.h"

namespace bdn::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostRecords = 50'000'000;
// The settings that `bandoneon run` takes as options alone.
constexpr std::string_view kOptions[] = {"servers", "link", "push", "pull", "transport"};

// A private directory, removed with all that is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::error_code ignored;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(ignored);
    path_ = (parent.empty() ? "/tmp" : parent) / "bandoneon-tune-XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }  // empty where it could not be made

 private:
  std::string path_;
};

std::vector<std::string> CommandOf(const PlanSettings& plan, const TrialOptions& options,
                                   const std::string& directory) {
  std::vector<std::string> argv = {"bandoneon", "run", "--workers", absl::StrCat(options.workers)};
  // The plan's settings go before those that all runs have.
  PlanSettings settings = plan;
  for (const auto& [name, value] : options.settings) {
    const auto same = [&name = name](const auto& other) { return other.first == name; };
    if (std::none_of(plan.begin(), plan.end(), same)) settings.emplace_back(name, value);
  }
  for (const auto& [name, value] : settings) {
    const bool has_option =
        std::find(std::begin(kOptions), std::end(kOptions), name) != std::end(kOptions);
    argv.push_back(has_option ? absl::StrCat("--", name) : "--set");
    argv.push_back(has_option ? value : absl::StrCat(name, "=", value));
  }
  argv.emplace_back("--set");
  argv.push_back(absl::StrCat("trace=", directory));
  argv.emplace_back("--");
  argv.insert(argv.end(), options.command.begin(), options.command.end());
  return argv;
}

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

// Becomes `bandoneon run`. Its lines go to standard error, because standard output is this
// command's result.
[[noreturn]] void Become(const std::vector<std::string>& command, const sigset_t& signals) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigprocmask(SIG_SETMASK, &signals, nullptr);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

struct Ended {
  int status = 0;  // as of waitpid
  bool by_limit = false;
  bool by_signal = false;  // one that came for this process
};

absl::StatusOr<Ended> Run(const std::vector<std::string>& command,
                          std::chrono::milliseconds limit) {
  const WaitSignals signals;
  const pid_t child = fork();
  if (child == 0) Become(command, signals.before());
  if (child < 0) return Internal("no process could be made: %s", strerror(errno));
  std::optional<Clock::time_point> until;
  if (limit.count() > 0) until = Clock::now() + limit;
  Ended ended;
  while (waitpid(child, &ended.status, WNOHANG) == 0) {
    const int signal = signals.Next(until);
    if (signal == SIGCHLD) continue;
    if (signal == 0 && !(until && Clock::now() >= *until)) continue;  // interrupted
    ended.by_limit = ended.by_limit || signal == 0;
    ended.by_signal = ended.by_signal || signal != 0;
    until.reset();
    kill(child, SIGTERM);
  }
  return ended;
}

}  // namespace

absl::StatusOr<StepTimes> TryPlan(const PlanSettings& plan, const TrialOptions& options) {
  const TemporaryDirectory directory;
  if (directory.path().empty()) {
    return Internal("no temporary directory could be made: %s", strerror(errno));
  }
  BDN_ASSIGN_OR_RETURN(const Ended ended,
                       Run(CommandOf(plan, options, directory.path()), options.limit));
  if (ended.by_signal) return Aborted("a signal ended it");
  const bool failed = !WIFEXITED(ended.status) || WEXITSTATUS(ended.status) != 0;
  if (failed && !ended.by_limit) {
    return FailedPrecondition("the run failed (status %d)",
                              WIFEXITED(ended.status) ? WEXITSTATUS(ended.status) : 1);
  }
  absl::StatusOr<StepTimes> times = [&]() -> absl::StatusOr<StepTimes> {
    BDN_ASSIGN_OR_RETURN(const JobTrace job,
                         ReadJob(directory.path(), {.records = {.max_records = kMostRecords}}));
    return MeasuredSteps(job);
  }();
  if (!times.ok()) return FailedPrecondition("%s", std::string(times.status().message()));
  return times;
}

}  // namespace bdn::cli
