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
  explicit RankWaits(size_t ranks) : ns_(ranks) {}
  RankWaits(const RankWaits&) = delete;
  RankWaits& operator=(const RankWaits&) = delete;

  size_t size() const { return ns_.size(); }
  // Adds to a rank's counter. A rank that the job does not have is ignored.
  void Add(Rank rank, uint64_t ns) {
    if (rank < 0 || static_cast<size_t>(rank) >= ns_.size()) return;
    ns_[static_cast<size_t>(rank)].fetch_add(ns, std::memory_order_relaxed);
  }
  uint64_t ns_of(size_t rank) const { return ns_[rank].load(std::memory_order_relaxed); }

 private:
  std::vector<std::atomic<uint64_t>> ns_;  // relaxed: counts that publish nothing else
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_RANK_WAITS_H_
