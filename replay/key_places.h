#ifndef BANDONEON_REPLAY_KEY_PLACES_H_
#define BANDONEON_REPLAY_KEY_PLACES_H_

#include <cstdint>

#include "replay/replay_model.h"

namespace bdn {

inline constexpr size_t kReplayValueBytes = 4;  // values count as float32

// Calls `action` with a pointer to each exchange of each recorded worker.
template <typename Do>
void ForEachExchange(ReplayModel* model, const Do& action) {
  for (WorkerModel& worker : model->workers) {
    for (StepProgram& step : worker.steps) {
      for (ExchangeCosts& costs : step.exchanges) action(&costs);
    }
  }
}

// Gives the keys that are exchanged to the servers by the scheduler's rule, and to their shards as
// PlaceShards does.
void PlaceKeys(ReplayModel* model);
// Gives the keys of each server to its shards by the server's rule: to the one with the fewest
// bytes, in the order of the keys.
void PlaceShards(ReplayModel* model);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_KEY_PLACES_H_
