#ifndef BANDONEON_REPLAY_SIMULATOR_H_
#define BANDONEON_REPLAY_SIMULATOR_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/replay_model.h"

namespace bdn {

// When a replayed exchange passed the points of ExchangePoint that the replay knows, in ns from the
// beginning of the first step.
struct ExchangeTimes {
  int64_t queued = 0;
  int64_t encoding = 0;
  int64_t sending = 0;
  int64_t sent = 0;
  int64_t arrived = 0;
  int64_t taken = 0;
  int64_t accepted = 0;
  int64_t replied = 0;
  int64_t reply_sent = 0;
  int64_t reply_here = 0;
  int64_t decoding = 0;
  int64_t decoded = 0;
};

// When a round closed, its sum was there, and its rule had made its step.
struct ReplayedRound {
  int64_t closed = 0;
  int64_t summed = 0;
  int64_t ruled = 0;
  uint32_t last_worker = 0;  // whose push closed it
};

// A stretch of a program: its waits, and what it computed under a mark.
struct ProgramStretch {
  uint8_t mark = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// The time from the first exchange of a step to the end of the last one, of all workers.
struct ExchangeSpan {
  int64_t begin = std::numeric_limits<int64_t>::max();
  int64_t end = std::numeric_limits<int64_t>::min();
};

struct ReplayResult {
  std::vector<std::vector<int64_t>> step_ends;  // by worker, then by step
  std::vector<ExchangeSpan> exchange_spans;     // by step
  uint64_t events = 0;
  int64_t end_ns = 0;  // the time of the last one
  // The rest is there only if it was asked for.
  std::vector<std::vector<std::vector<ExchangeTimes>>> exchanges;  // worker, step, exchange
  std::vector<ReplayedRound> rounds;                               // as ReplayModel::rounds
  std::vector<std::vector<ProgramStretch>> programs;               // by worker
};

// A replay of so many exchanges takes about 2 GiB.
inline constexpr uint64_t kMostExchanges = 20'000'000;

// Plays a model through: discrete events on one thread, in an order that depends on the model
// alone. Threads that encode and decode, links, shards and queues of replies are busy or wait by
// the job's own rules (link/urgency.h, common/transport/link_schedule.h). Cores are not shared out:
// an operation takes as long as it took. Its time and memory are linear in the number of exchanges.
// Internal where the replay stands still, which a sound model never does; ResourceExhausted where
// there are more exchanges than kMostExchanges.
absl::StatusOr<ReplayResult> Simulate(const ReplayModel& model, bool keep_times);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_SIMULATOR_H_
