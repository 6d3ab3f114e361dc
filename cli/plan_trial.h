#ifndef BANDONEON_CLI_PLAN_TRIAL_H_
#define BANDONEON_CLI_PLAN_TRIAL_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan_file.h"
#include "replay/replay_report.h"

namespace bdn::cli {

// The way in which a job is run to measure its steps.
struct TrialOptions {
  size_t workers = 1;
  PlanSettings settings;             // those of every run, as of --set
  std::vector<std::string> command;  // what each worker runs
  std::chrono::milliseconds limit;   // a run is ended after so long; 0: never
};

// Runs a job by `bandoneon run` with these settings, and returns the steps that it records. It
// prints to standard error alone. Blocks until the run has ended. Aborted where SIGINT or SIGTERM
// came for this process, and was passed on; FailedPrecondition where the run failed, or recorded no
// step. REQUIRES: no other thread runs in this process.
absl::StatusOr<StepTimes> TryPlan(const PlanSettings& plan, const TrialOptions& options);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_PLAN_TRIAL_H_
