#ifndef BANDONEON_SERVER_LATE_WORKERS_H_
#define BANDONEON_SERVER_LATE_WORKERS_H_

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
  std::vector<NodeId> missing;  // those of Round::MissingRanks
};

// The workers for which open rounds wait, and since when they were seen to. A state machine; not
// thread-safe; time is an argument.
class LateWorkers {
 public:
  // Takes all rounds that are open now.
  void Look(const std::vector<OpenRound>& rounds, absl::Time now);
  // Returns for each of them how long the oldest round that waits for it was seen to be open, as of
  // the last look; nodes rise.
  std::vector<NodeWait> Waits() const { return waits_; }

 private:
  struct Seen {
    Step step = 0;
    absl::Time since;
  };
  absl::flat_hash_map<Key, Seen> since_;
  std::vector<NodeWait> waits_;
};

// Returns the longest wait for each node of both; nodes rise in each.
std::vector<NodeWait> LongestWaits(const std::vector<NodeWait>& some,
                                   const std::vector<NodeWait>& others);

}  // namespace bdn

#endif  // BANDONEON_SERVER_LATE_WORKERS_H_
