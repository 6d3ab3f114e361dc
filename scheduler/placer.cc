#include "scheduler/placer.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace bdn {
namespace {

// Servers this close to the least loaded, as a share of the mean load, count as level with it.
constexpr uint64_t kLevelShare = 100;

struct Load {
  NodeId server;
  uint64_t bytes = 0;
};

// Places the keys of one kind. `owners` has the owner of each key, by place in the list: 0 where it
// has none yet.
class KindPlacer {
 public:
  KindPlacer(KeyKind kind, const std::vector<NodeInfo>& servers, const std::vector<KeyEntry>& keys,
             std::vector<NodeId>* owners)
      : kind_(kind), keys_(keys), owners_(*owners) {
    for (const NodeInfo& server : servers) loads_.push_back({server.id});
  }

  void Place() {
    std::vector<size_t> fresh;
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (keys_[i].kind != kind_) continue;
      total_ += KeyBytes(keys_[i]);
      if (owners_[i] == 0) {
        fresh.push_back(i);
      } else {
        CountOn(owners_[i], KeyBytes(keys_[i]));
      }
    }
    std::stable_sort(fresh.begin(), fresh.end(),
                     [&](size_t a, size_t b) { return KeyBytes(keys_[a]) > KeyBytes(keys_[b]); });
    for (const size_t i : fresh) {
      const NodeId before = i == 0 ? 0 : owners_[i - 1];
      const NodeId after = i + 1 == keys_.size() ? 0 : owners_[i + 1];
      Load& chosen = Choose(before, after);
      owners_[i] = chosen.server;
      chosen.bytes += KeyBytes(keys_[i]);
    }
  }

 private:
  void CountOn(NodeId server, uint64_t bytes) {
    for (Load& load : loads_) {
      if (load.server == server) load.bytes += bytes;
    }
  }

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
  const std::vector<KeyEntry>& keys_;
  std::vector<NodeId>& owners_;
  std::vector<Load> loads_;
  uint64_t total_ = 0;
};

}  // namespace

PlacementTable PlaceKeys(const Membership& membership, const Catalogue& catalogue,
                         const PlacementTable& before) {
  std::vector<NodeId> owners;
  owners.reserve(catalogue.keys.size());
  for (const KeyEntry& key : catalogue.keys) owners.push_back(before.OwnerOf(key.key));
  for (const KeyKind kind : {KeyKind::kDense, KeyKind::kBroadcast}) {
    KindPlacer(kind, membership.servers, catalogue.keys, &owners).Place();
  }
  PlacementTable::Owners table;
  table.reserve(owners.size());
  for (size_t i = 0; i < owners.size(); ++i) table.emplace(catalogue.keys[i].key, owners[i]);
  return PlacementTable({membership.epoch, catalogue.version}, std::move(table));
}

}  // namespace bdn
