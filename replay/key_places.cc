#include "replay/key_places.h"

#include <algorithm>
#include <set>
#include <vector>

#include "common/cluster/catalogue.h"
#include "scheduler/placer.h"

namespace bdn {
namespace {

// Returns the places of the keys that are exchanged, in the order of the keys.
std::vector<size_t> UsedKeys(ReplayModel* model) {
  std::set<size_t> used;
  ForEachExchange(model, [&](const ExchangeCosts* costs) { used.insert(costs->key); });
  std::vector<size_t> order(used.begin(), used.end());
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return model->keys[a].key < model->keys[b].key; });
  return order;
}

}  // namespace

void PlaceKeys(ReplayModel* model) {
  std::vector<NodeInfo> servers(model->servers.size());
  for (size_t i = 0; i < servers.size(); ++i) servers[i].id = static_cast<NodeId>(i + 1);
  const std::vector<size_t> order = UsedKeys(model);
  std::vector<KeyEntry> entries;
  for (const size_t i : order) {
    entries.push_back({.key = model->keys[i].key,
                       .kind = KeyKind::kDense,
                       .elements = model->keys[i].value_bytes / kReplayValueBytes});
  }
  const std::vector<NodeId> owners = Placer(servers).Place(entries);
  for (size_t i = 0; i < order.size(); ++i) model->keys[order[i]].server = owners[i] - 1;
  PlaceShards(model);
}

void PlaceShards(ReplayModel* model) {
  std::vector<std::vector<uint64_t>> shard_bytes;
  for (const ServerModel& server : model->servers) {
    shard_bytes.emplace_back(std::max<uint32_t>(server.shards, 1), 0);
  }
  for (const size_t i : UsedKeys(model)) {
    KeyModel& key = model->keys[i];
    auto& bytes = shard_bytes[key.server];
    const auto least = std::min_element(bytes.begin(), bytes.end());
    key.shard = static_cast<uint32_t>(least - bytes.begin());
    *least += key.value_bytes;
  }
}

}  // namespace bdn
