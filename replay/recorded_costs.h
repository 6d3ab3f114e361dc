#ifndef BANDONEON_REPLAY_RECORDED_COSTS_H_
#define BANDONEON_REPLAY_RECORDED_COSTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "replay/replay_model.h"
#include "trace/job_trace.h"

namespace bdn {

// The place of a recorded exchange in the model.
struct ExchangePlace {
  uint32_t worker = 0;
  uint32_t step = 0;
  uint32_t exchange = 0;
};
using ExchangePlaces = std::vector<std::pair<uint32_t, ExchangePlace>>;  // by the job's exchange

// Takes what exchanges waited for apart into what a replay finds out anew, because threads and
// links were busy, and the rest, which it keeps: the time until a free thread began, and the way
// beyond the links' rates. Where no setting says those rates, estimates them first.
void MeasureCosts(const JobTrace& job, const ExchangePlaces& places, ReplayModel* model);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_RECORDED_COSTS_H_
