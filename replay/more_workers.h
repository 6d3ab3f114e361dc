#ifndef BANDONEON_REPLAY_MORE_WORKERS_H_
#define BANDONEON_REPLAY_MORE_WORKERS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "replay/replay_model.h"

namespace bdn {

// Gives a job so many workers: the first recorded ones, or more, each of which has the steps of a
// recorded one in another order, so that they differ as the recorded ones do. Where that is a great
// many exchanges, fewer steps are kept. Unimplemented where the steps of a worker exchange
// different tensors; ResourceExhausted where not even one step of all workers can be replayed.
absl::Status SetWorkers(uint32_t count, ReplayModel* model);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_MORE_WORKERS_H_
