#include "cli/plan_trial.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/own_command.h"
#include "common/base/status.h"
#include "trace/job_trace.h"

namespace bdn::cli {
namespace {

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

}  // namespace

absl::StatusOr<StepTimes> TryPlan(const PlanSettings& plan, const TrialOptions& options) {
  const TemporaryDirectory directory;
  if (directory.path().empty()) {
    return Internal("no temporary directory could be made: %s", strerror(errno));
  }
  BDN_ASSIGN_OR_RETURN(
      const CommandEnd ended,
      RunOwnCommand(CommandOf(plan, options, directory.path()), {}, options.limit));
  if (ended.by_signal != 0) return Aborted("a signal ended it");
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
