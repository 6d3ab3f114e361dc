#ifndef BANDONEON_CLI_STAGE_TABLE_H_
#define BANDONEON_CLI_STAGE_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn::cli {

// The counts of one telemetry phase of a node, or of all nodes of a role.
struct StageRow {
  std::string name;
  uint64_t items = 0;
  uint64_t bytes = 0;
  uint64_t wall_ns = 0;
  uint64_t cpu_ns = 0;  // 0 where an item only waits

  bool operator==(const StageRow&) const = default;
};
using StageRows = std::vector<StageRow>;  // in the order in which items pass them

// Parses the object "stages" of statistics, metrics files and the status. InvalidArgument where it
// is none.
absl::StatusOr<StageRows> ParseStages(std::string_view json);
std::string StagesJson(const StageRows& rows);

// Adds `more` to the rows of the same names.
void AddStages(const StageRows& more, StageRows* sum);
// Returns what `after` has more than `before`; never below 0.
StageRows StagesSince(const StageRows& before, StageRows after);

// Returns a table for people, by node or role: a row for each phase that had an item, with its wall
// and CPU time an item, and its share of the wall time of all phases of that node or role. Empty
// without items.
std::string StageTable(const std::vector<std::pair<std::string, StageRows>>& nodes);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_STAGE_TABLE_H_
