#ifndef BANDONEON_SERVER_LATE_RANKS_H_
#define BANDONEON_SERVER_LATE_RANKS_H_

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/cluster/control_plane.h"

namespace bdn {

// A round that some workers have not pushed to yet.
struct OpenRound {
  Key key;
  Step step = 0;
  std::vector<Rank> missing;  // as Round::MissingRanks
};

// The ranks for which open rounds wait, and since when they were seen to. A state machine; not
// thread-safe; time is an argument.
class LateRanks {
 public:
  // Takes all rounds that are open now.
  void Look(const std::vector<OpenRound>& rounds, absl::Time now);
  // Returns for each rank how long the oldest round that waits for it was seen to be open, as of
  // the last look; ranks rise.
  std::vector<RankWait> Waits() const { return waits_; }

 private:
  struct Seen {
    Step step = 0;
    absl::Time since;
  };
  absl::flat_hash_map<Key, Seen> since_;
  std::vector<RankWait> waits_;
};

// Returns the longest wait of each rank of both; ranks rise in each.
std::vector<RankWait> LongestWaits(const std::vector<RankWait>& some,
                                   const std::vector<RankWait>& others);

}  // namespace bdn

#endif  // BANDONEON_SERVER_LATE_RANKS_H_
