#include "common/cluster/placement.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "common/cluster/plan.h"

namespace bdn {
namespace {

std::vector<KeyEntry> Keys(const std::vector<uint64_t>& elements) {
  std::vector<KeyEntry> keys;
  for (size_t i = 0; i < elements.size(); ++i) {
    KeyEntry key;
    key.key = Key::Of(static_cast<uint32_t>(i), 0);
    key.elements = elements[i];
    keys.push_back(key);
  }
  return keys;
}

// Most over least loaded.
double Imbalance(const std::vector<NodeId>& servers, const std::vector<KeyEntry>& keys) {
  std::map<NodeId, uint64_t> loads;
  for (const NodeId server : servers) loads[server] = 0;
  for (const KeyEntry& key : keys) loads.at(key.server) += KeyBytes(key);
  uint64_t most = 0;
  uint64_t least = ~uint64_t{0};
  for (const auto& [server, bytes] : loads) {
    most = std::max(most, bytes);
    least = std::min(least, bytes);
  }
  return static_cast<double>(most) / static_cast<double>(least);
}

TEST(Placement, SpreadsEqualKeysInTurn) {
  const std::vector<NodeId> servers = {4, 5, 6};
  auto keys = Keys(std::vector<uint64_t>(9, 1000));
  PlaceKeys(servers, {}, keys);
  EXPECT_EQ(Imbalance(servers, keys), 1.0);
  for (size_t i = 1; i < keys.size(); ++i) EXPECT_NE(keys[i].server, keys[i - 1].server);
}

TEST(Placement, BalancesUnevenKeysWithinFivePercent) {
  std::mt19937 random(7);
  for (const size_t num_servers : {2u, 3u, 5u, 8u}) {
    std::vector<NodeId> servers;
    for (size_t i = 0; i < num_servers; ++i) servers.push_back(static_cast<NodeId>(10 + i));
    std::vector<uint64_t> elements;
    for (int i = 0; i < 200; ++i) elements.push_back(1 + random() % 1000000);
    auto keys = Keys(elements);
    PlaceKeys(servers, {}, keys);
    EXPECT_LE(Imbalance(servers, keys), 1.05) << num_servers << " servers";
  }
}

TEST(Placement, KeepsNeighboursApartWhereServersAreLevel) {
  const std::vector<NodeId> servers = {1, 2, 3};
  std::mt19937 random(3);
  std::vector<uint64_t> elements;
  for (int i = 0; i < 60; ++i) elements.push_back(100000 + random() % 100);
  auto keys = Keys(elements);
  PlaceKeys(servers, {}, keys);
  int together = 0;
  for (size_t i = 1; i < keys.size(); ++i) together += keys[i].server == keys[i - 1].server;
  EXPECT_LE(together, 12);
  EXPECT_LE(Imbalance(servers, keys), 1.05);
}

TEST(Placement, CountsWhatIsPlacedAndLeavesItThere) {
  const std::vector<NodeId> servers = {1, 2};
  auto first = Keys({1000});
  PlaceKeys(servers, {}, first);
  auto second = Keys({400, 400, 200});
  PlaceKeys(servers, first, second);
  for (const KeyEntry& key : second) EXPECT_NE(key.server, first[0].server);
}

TEST(Placement, BalancesDenseAndOpaqueKeysEachAlone) {
  const std::vector<NodeId> servers = {1, 2};
  auto keys = Keys({1000, 1000, 1000, 1000});
  keys[0].kind = keys[1].kind = KeyKind::kBroadcast;
  PlaceKeys(servers, {}, keys);
  EXPECT_NE(keys[0].server, keys[1].server);
  EXPECT_NE(keys[2].server, keys[3].server);
}

TEST(Placement, IsTheSameEveryTime) {
  const std::vector<NodeId> servers = {1, 2, 3};
  auto keys = Keys({5, 9, 9, 3, 100, 7, 7, 2});
  auto again = keys;
  PlaceKeys(servers, {}, keys);
  PlaceKeys(servers, {}, again);
  EXPECT_EQ(keys, again);
}

}  // namespace
}  // namespace bdn
