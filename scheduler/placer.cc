#include "common/cluster/placement.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "common/cluster/plan.h"

namespace bdn {
namespace {

// Servers this close to the least loaded, as a share of the mean load, count as level with it.
constexpr uint64_t kLevelShare = 100;

struct Load {
  NodeId server;
  uint64_t bytes = 0;
};

class Placer {
 public:
  Placer(std::span<const NodeId> servers, KeyKind kind) : kind_(kind) {
    for (const NodeId server : servers) loads_.push_back({server});
  }

  void Count(const KeyEntry& key) {
    if (key.kind != kind_) return;
    total_ += KeyBytes(key);
    for (Load& load : loads_) {
      if (load.server == key.server) load.bytes += KeyBytes(key);
    }
  }

  void Place(std::span<KeyEntry> fresh, NodeId before_first) {
    std::vector<size_t> order;
    for (size_t i = 0; i < fresh.size(); ++i) {
      if (fresh[i].kind != kind_) continue;
      order.push_back(i);
      total_ += KeyBytes(fresh[i]);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return KeyBytes(fresh[a]) > KeyBytes(fresh[b]); });
    for (const size_t i : order) {
      const NodeId before = i == 0 ? before_first : fresh[i - 1].server;
      const NodeId after = i + 1 == fresh.size() ? 0 : fresh[i + 1].server;
      Load& chosen = Choose(before, after);
      fresh[i].server = chosen.server;
      chosen.bytes += KeyBytes(fresh[i]);
    }
  }

 private:
  Load& Choose(NodeId before, NodeId after) {
    const auto lighter = [](const Load& a, const Load& b) { return a.bytes < b.bytes; };
    Load& least = *std::min_element(loads_.begin(), loads_.end(), lighter);
    const uint64_t level = least.bytes + total_ / loads_.size() / kLevelShare;
    // Of those that are level: no neighbour there, then the lighter, then the lower rank.
    Load* best = &least;
    const auto neighbours = [&](const Load& load) {
      return (load.server == before) + (load.server == after);
    };
    for (Load& load : loads_) {
      if (load.bytes <= level && neighbours(load) < neighbours(*best)) best = &load;
    }
    return *best;
  }

  const KeyKind kind_;
  std::vector<Load> loads_;
  uint64_t total_ = 0;
};

}  // namespace

void PlaceKeys(std::span<const NodeId> servers, std::span<const KeyEntry> placed,
               std::span<KeyEntry> fresh) {
  for (const KeyKind kind : {KeyKind::kDense, KeyKind::kBroadcast}) {
    Placer placer(servers, kind);
    for (const KeyEntry& key : placed) placer.Count(key);
    placer.Place(fresh, placed.empty() ? 0 : placed.back().server);
  }
}

}  // namespace bdn
