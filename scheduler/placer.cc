#include "scheduler/placer.h"

#include <algorithm>

#include "common/cluster/server_bytes.h"

namespace bdn {
namespace {

// The share of the mean load, as one over this number, by which servers may differ from the least
// loaded and still count as level with it.
constexpr uint64_t kLevelShare = 100;

constexpr size_t kNobody = ~size_t{0};

// Returns the bytes by which a key counts among those of its kind.
uint64_t LoadBytes(const KeyEntry& key) {
  return key.kind == KeyKind::kRows ? ServerBytes(key) : KeyBytes(key);
}

}  // namespace

Placer::Placer(const std::vector<NodeInfo>& servers) : loads_(servers.size()), last_(kNobody) {
  for (size_t rank = 0; rank < servers.size(); ++rank) {
    servers_.push_back(servers[rank].id);
    ranks_[servers[rank].id] = rank;
    for (Loads& kind : kinds_) kind.lightest.insert({0, rank});
  }
}

std::vector<NodeId> Placer::Place(std::span<const KeyEntry> keys) {
  std::vector<size_t> owners(keys.size(), kNobody);
  // Kinds are levelled apart: dense keys cost a server time in every step, broadcasts do not, and
  // those of tables cost time by the rows that are touched.
  for (const KeyKind kind : {KeyKind::kDense, KeyKind::kBroadcast, KeyKind::kRows}) {
    PlaceKind(kind, keys, &owners);
  }
  std::vector<NodeId> nodes;
  nodes.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    Load& load = loads_[owners[i]];
    ++load.keys;
    load.key_bytes += KeyBytes(keys[i]);
    load.server_bytes += ServerBytes(keys[i]);
    nodes.push_back(servers_[owners[i]]);
  }
  if (!owners.empty()) last_ = owners.back();
  return nodes;
}

void Placer::PlaceKind(KeyKind kind, std::span<const KeyEntry> keys, std::vector<size_t>* owners) {
  Loads& loads = kinds_[static_cast<size_t>(kind)];
  std::vector<size_t> fresh;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].kind != kind) continue;
    loads.total += LoadBytes(keys[i]);
    fresh.push_back(i);
  }
  // Largest first: small keys then even out what large ones leave uneven. Stable, so that every run
  // places alike.
  std::stable_sort(fresh.begin(), fresh.end(),
                   [&](size_t a, size_t b) { return LoadBytes(keys[a]) > LoadBytes(keys[b]); });
  // The loads by rank, to find a rank's entry among those sorted by bytes.
  std::vector<uint64_t> bytes(servers_.size());
  for (const auto& [load, rank] : loads.lightest) bytes[rank] = load;
  for (const size_t i : fresh) {
    // The next key may be placed already, because keys are placed by size.
    const size_t rank = Choose(loads, i == 0 ? last_ : (*owners)[i - 1],
                               i + 1 == keys.size() ? kNobody : (*owners)[i + 1]);
    (*owners)[i] = rank;
    auto node = loads.lightest.extract({bytes[rank], rank});
    node.value().first = bytes[rank] += LoadBytes(keys[i]);
    loads.lightest.insert(std::move(node));
  }
}

// Chooses the server of a key. It looks at three servers at most, because of three one holds
// neither neighbour.
size_t Placer::Choose(const Loads& loads, size_t before, size_t after) const {
  const uint64_t level =
      loads.lightest.begin()->first + loads.total / servers_.size() / kLevelShare;
  size_t best = kNobody;
  int fewest = 3;
  for (const auto& [bytes, rank] : loads.lightest) {
    if (bytes > level || fewest == 0) break;
    const int neighbours = (rank == before) + (rank == after);
    if (neighbours < fewest) {
      best = rank;
      fewest = neighbours;
    }
  }
  return best;
}

void Placer::Remove(const KeyEntry& key, NodeId owner) {
  const size_t rank = ranks_.at(owner);
  Load& load = loads_[rank];
  --load.keys;
  load.key_bytes -= KeyBytes(key);
  load.server_bytes -= ServerBytes(key);
  Loads& kind = kinds_[static_cast<size_t>(key.kind)];
  kind.total -= LoadBytes(key);
  // A linear search is enough: servers are few, and keys are seldom removed.
  const auto found = std::find_if(kind.lightest.begin(), kind.lightest.end(),
                                  [rank](const auto& one) { return one.second == rank; });
  auto node = kind.lightest.extract(found);
  node.value().first -= LoadBytes(key);
  kind.lightest.insert(std::move(node));
}

Placer::Load Placer::LoadOf(NodeId server) const {
  const auto found = ranks_.find(server);
  return found == ranks_.end() ? Load() : loads_[found->second];
}

}  // namespace bdn
