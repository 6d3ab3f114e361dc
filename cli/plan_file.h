#ifndef BANDONEON_CLI_PLAN_FILE_H_
#define BANDONEON_CLI_PLAN_FILE_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// Settings of a job that `bandoneon tune` writes and `bandoneon run --plan` starts with: names and
// values, as of --set.
using PlanSettings = std::vector<std::pair<std::string, std::string>>;

// The median step of a plan, in ms.
struct PlanFigures {
  double recorded_ms = 0;  // with the recorded settings, replayed
  double predicted_ms = 0;
  double predicted_low_ms = 0;
  double predicted_high_ms = 0;
  std::optional<double> measured_ms;           // where it was run
  std::optional<double> measured_recorded_ms;  // of the recorded settings, run beside it
  std::vector<std::string> notes;              // doubts about the prediction
};

// Returns a plan as a JSON object.
std::string PlanText(const PlanSettings& settings, const PlanFigures& figures);

// Reads a plan. InvalidArgument says what is wrong with the text; settings that plans do not have
// are refused by name.
absl::StatusOr<PlanSettings> ParsePlan(std::string_view text);

// Returns the whole of a file. NotFound where it cannot be read; it may have 64 MiB at most.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_PLAN_FILE_H_
