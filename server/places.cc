#include "server/places.h"

#include <algorithm>

namespace bdn {

Places::Places(const std::vector<NodeInfo>& workers) {
  workers_.reserve(workers.size());
  by_node_.reserve(workers.size());
  for (const NodeInfo& worker : workers) {
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
