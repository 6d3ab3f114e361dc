#include "server/late_ranks.h"

#include <algorithm>
#include <map>
#include <utility>

namespace bdn {

void LateRanks::Look(const std::vector<OpenRound>& rounds, absl::Time now) {
  absl::flat_hash_map<Key, Seen> open;
  std::map<Rank, absl::Duration> longest;
  for (const OpenRound& round : rounds) {
    const auto known = since_.find(round.key);
    const bool is_same = known != since_.end() && known->second.step == round.step;
    const absl::Time since = is_same ? known->second.since : now;
    open[round.key] = {round.step, since};
    for (const Rank rank : round.missing) {
      absl::Duration& wait = longest[rank];
      wait = std::max(wait, now - since);
    }
  }
  since_ = std::move(open);
  waits_.clear();
  for (const auto& [rank, wait] : longest) waits_.push_back({rank, wait});
}

std::vector<RankWait> LongestWaits(const std::vector<RankWait>& some,
                                   const std::vector<RankWait>& others) {
  std::map<Rank, absl::Duration> longest;
  for (const std::vector<RankWait>* waits : {&some, &others}) {
    for (const RankWait& each : *waits) {
      absl::Duration& wait = longest[each.rank];
      wait = std::max(wait, each.wait);
    }
  }
  std::vector<RankWait> all;
  for (const auto& [rank, wait] : longest) all.push_back({rank, wait});
  return all;
}

}  // namespace bdn
