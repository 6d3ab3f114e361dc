#include "server/late_workers.h"

#include <algorithm>
#include <map>
#include <utility>

namespace bdn {

void LateWorkers::Look(const std::vector<OpenRound>& rounds, absl::Time now) {
  absl::flat_hash_map<Key, Seen> open;
  std::map<NodeId, absl::Duration> longest;
  for (const OpenRound& round : rounds) {
    const auto known = since_.find(round.key);
    const bool is_same = known != since_.end() && known->second.step == round.step;
    const absl::Time since = is_same ? known->second.since : now;
    open[round.key] = {round.step, since};
    for (const NodeId node : round.missing) {
      absl::Duration& wait = longest[node];
      wait = std::max(wait, now - since);
    }
  }
  since_ = std::move(open);
  waits_.clear();
  for (const auto& [node, wait] : longest) waits_.push_back({node, wait});
}

std::vector<NodeWait> LongestWaits(const std::vector<NodeWait>& some,
                                   const std::vector<NodeWait>& others) {
  std::map<NodeId, absl::Duration> longest;
  for (const std::vector<NodeWait>* waits : {&some, &others}) {
    for (const NodeWait& each : *waits) {
      absl::Duration& wait = longest[each.node];
      wait = std::max(wait, each.wait);
    }
  }
  std::vector<NodeWait> all;
  for (const auto& [node, wait] : longest) all.push_back({node, wait});
  return all;
}

}  // namespace bdn
