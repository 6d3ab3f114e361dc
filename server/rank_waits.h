#ifndef BANDONEON_SERVER_RANK_WAITS_H_
#define BANDONEON_SERVER_RANK_WAITS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace bdn {

// A counter for each rank of how long rounds waited for it: from their first push to that rank's
// push, over all complete rounds. Thread-safe.
class RankWaits {
 public:
  explicit RankWaits(size_t ranks) : waits_(ranks) {}
  RankWaits(const RankWaits&) = delete;
  RankWaits& operator=(const RankWaits&) = delete;

  size_t size() const { return waits_.size(); }
  // Adds a round to a rank's counter. A rank that the job does not have is ignored.
  void Add(Rank rank, uint64_t ns) {
    if (rank < 0 || static_cast<size_t>(rank) >= waits_.size()) return;
    Wait& wait = waits_[static_cast<size_t>(rank)];
    wait.rounds.fetch_add(1, std::memory_order_relaxed);
    wait.ns.fetch_add(ns, std::memory_order_relaxed);
  }
  uint64_t ns_of(size_t rank) const { return waits_[rank].ns.load(std::memory_order_relaxed); }
  uint64_t rounds_of(size_t rank) const {
    return waits_[rank].rounds.load(std::memory_order_relaxed);
  }

 private:
  struct Wait {  // accessed relaxed: counts that publish nothing else
    std::atomic<uint64_t> rounds = 0;
    std::atomic<uint64_t> ns = 0;
  };
  std::vector<Wait> waits_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_RANK_WAITS_H_
