#ifndef BANDONEON_CLI_PLAN_FILE_H_
#define BANDONEON_CLI_PLAN_FILE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// Settings of a job that `bandoneon tune` writes and `bandoneon run --plan` starts with: names and
// values, as of --set.
using PlanSettings = std::vector<std::pair<std::string, std::string>>;

// Returns a plan as JSON, with what the replay said of it.
std::string PlanText(const PlanSettings& settings, double recorded_ms, double predicted_ms);

// Reads a plan. InvalidArgument says what is wrong with the text; settings that plans do not have
// are refused by name.
absl::StatusOr<PlanSettings> ParsePlan(std::string_view text);

// Returns the whole of a file. NotFound where it cannot be read; it may have 64 MiB at most.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_PLAN_FILE_H_
