#ifndef BANDONEON_SERVER_ROUND_H_
#define BANDONEON_SERVER_ROUND_H_

#include <vector>

#include "common/base/buffer.h"
#include "common/base/ids.h"

namespace bdn {

// What one worker gave to a round.
struct Contribution {
  enum class Kind : uint8_t { kMissing, kAbsent, kNonFinite, kPayload };
  Kind kind = Kind::kMissing;
  float weight = 0;
  float learning_rate = 0;
  Buffer payload;  // still encoded; validated at receipt
};

// An open step of one key: contributions by rank, held encoded until all are there.
struct Round {
  Step step = 0;  // 0: no round is open
  std::vector<Contribution> by_rank;

  bool is_open() const { return step != 0; }
  // Whether a rank is in the open round.
  bool Has(Rank rank) const {
    return static_cast<size_t>(rank) < by_rank.size() &&
           by_rank[rank].kind != Contribution::Kind::kMissing;
  }

  void Open(Step new_step, size_t roster_size) {
    step = new_step;
    by_rank.assign(roster_size, Contribution{});
  }
  void Close() { *this = Round{}; }

  std::vector<Rank> MissingRanks() const {
    std::vector<Rank> missing;
    for (Rank rank = 0; static_cast<size_t>(rank) < by_rank.size(); ++rank) {
      if (!Has(rank)) missing.push_back(rank);
    }
    return missing;
  }
  bool IsComplete() const { return MissingRanks().empty(); }
  // The lowest rank that has contributed, or -1.
  Rank FirstRank() const {
    for (Rank rank = 0; static_cast<size_t>(rank) < by_rank.size(); ++rank) {
      if (Has(rank)) return rank;
    }
    return -1;
  }
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROUND_H_
