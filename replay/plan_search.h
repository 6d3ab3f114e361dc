#ifndef BANDONEON_REPLAY_PLAN_SEARCH_H_
#define BANDONEON_REPLAY_PLAN_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/replay_report.h"
#include "replay/replay_settings.h"

namespace bdn {

// Settings of a job, and what the replay says of them.
struct Plan {
  ReplaySettings settings;
  int64_t median_ns = 0;  // of a step
};

// What may be changed beside partitions and bytes in flight, which change no result.
struct PlanSpace {
  uint32_t most_servers = 0;        // 0: as many as were recorded
  std::vector<std::string> codecs;  // specs that may be used, each way
};

struct PlanSearch {
  int64_t recorded_ns = 0;  // a step with the recorded settings, replayed
  std::vector<Plan> plans;  // at most three, the fastest first; empty where none is faster
  uint64_t replays = 0;
};

// Changes one setting at a time as long as that makes steps faster by half a percent, from the
// recorded settings on: a local search, which may miss what only two changes together bring.
// Errors are those of the replay.
absl::StatusOr<PlanSearch> SearchPlans(const Replayer& replayer, const PlanSpace& space);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_PLAN_SEARCH_H_
