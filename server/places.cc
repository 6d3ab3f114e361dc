#include "server/places.h"

#include <algorithm>

namespace bdn {

Places::Places(const std::vector<NodeInfo>& workers, const RankGroup& group) {
  const size_t most = group.is_all() ? workers.size() : group.ranks().size();
  workers_.reserve(most);
  by_node_.reserve(most);
  for (const NodeInfo& worker : workers) {
    if (!group.Has(worker.rank)) continue;
    by_node_.emplace(worker.id, PlaceAt(workers_.size()));
    workers_.push_back({worker.rank, worker.id});
  }
}

std::optional<Place> Places::OfNode(NodeId node) const {
  const auto found = by_node_.find(node);
  if (found == by_node_.end()) return std::nullopt;
  return found->second;
}

std::optional<Place> Places::OfRank(Rank rank) const {
  const auto found =
      std::ranges::lower_bound(workers_, rank, {}, [](const Worker& each) { return each.rank; });
  if (found == workers_.end() || found->rank != rank) return std::nullopt;
  return PlaceAt(static_cast<size_t>(found - workers_.begin()));
}

}  // namespace bdn
