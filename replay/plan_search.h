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
  StepPrediction step;
};

// The changes that are allowed beside those of keys and bytes in flight, which change no result.
struct PlanSpace {
  uint32_t most_servers = 0;        // 0: as many as were recorded
  std::vector<std::string> codecs;  // specs that may be used, each way
};

struct PlanSearch {
  StepPrediction recorded;  // a step with the recorded settings, replayed
  std::vector<Plan> plans;  // at most three, the fastest first; empty where none is faster
  uint64_t replays = 0;
  // The settings that could not be tried, with the reason, as sentences.
  std::vector<std::string> notes;
};

// Changes one setting at a time as long as that makes steps faster by half a percent, from the
// recorded settings on: a local search, which may miss what only two changes together bring.
// Settings that the recording is not enough for are left out. Errors are those of the replay.
absl::StatusOr<PlanSearch> SearchPlans(const Replayer& replayer, const PlanSpace& space);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_PLAN_SEARCH_H_
