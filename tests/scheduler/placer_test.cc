#include "scheduler/placer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace bdn {
namespace {

std::vector<KeyEntry> KeysOf(const std::vector<uint64_t>& elements) {
  std::vector<KeyEntry> keys;
  for (const uint64_t count : elements) {
    keys.push_back({.key = Key::Of(static_cast<uint32_t>(keys.size()), 0), .elements = count});
  }
  return keys;
}

std::vector<NodeInfo> WithServers(const std::vector<NodeId>& ids) {
  std::vector<NodeInfo> servers;
  for (const NodeId id : ids) {
    servers.push_back({.id = id, .role = Role::kServer, .rank = static_cast<Rank>(servers.size())});
  }
  return servers;
}

std::vector<NodeId> PlaceKeys(const std::vector<NodeInfo>& servers,
                              const std::vector<KeyEntry>& keys) {
  return Placer(servers).Place(keys);
}

int CountNeighboursTogether(const std::vector<NodeId>& owners) {
  int together = 0;
  for (size_t i = 1; i < owners.size(); ++i) together += owners[i] == owners[i - 1];
  return together;
}

// Most over least loaded.
double Imbalance(const std::vector<NodeInfo>& servers, const std::vector<KeyEntry>& keys,
                 const std::vector<NodeId>& owners) {
  std::map<NodeId, uint64_t> loads;
  for (const NodeInfo& server : servers) loads[server.id] = 0;
  for (size_t i = 0; i < keys.size(); ++i) loads.at(owners[i]) += KeyBytes(keys[i]);
  uint64_t most = 0;
  uint64_t least = ~uint64_t{0};
  for (const auto& [server, bytes] : loads) {
    most = std::max(most, bytes);
    least = std::min(least, bytes);
  }
  return static_cast<double>(most) / static_cast<double>(least);
}

TEST(Placer, SpreadsEqualKeysInTurn) {
  const std::vector<NodeInfo> servers = WithServers({4, 5, 6});
  const std::vector<KeyEntry> keys = KeysOf(std::vector<uint64_t>(9, 1000));
  const std::vector<NodeId> owners = PlaceKeys(servers, keys);
  EXPECT_EQ(Imbalance(servers, keys, owners), 1.0);
  EXPECT_EQ(CountNeighboursTogether(owners), 0);
}

TEST(Placer, BalancesUnevenKeysWithinFivePercent) {
  std::mt19937 random(7);
  for (const size_t num_servers : {2u, 3u, 5u, 8u}) {
    std::vector<NodeId> ids;
    for (size_t i = 0; i < num_servers; ++i) ids.push_back(static_cast<NodeId>(10 + i));
    const std::vector<NodeInfo> servers = WithServers(ids);
    std::vector<uint64_t> elements;
    for (int i = 0; i < 200; ++i) elements.push_back(1 + random() % 1000000);
    const std::vector<KeyEntry> keys = KeysOf(elements);
    const std::vector<NodeId> owners = PlaceKeys(servers, keys);
    EXPECT_LE(Imbalance(servers, keys, owners), 1.05) << num_servers << " servers";
  }
}

TEST(Placer, KeepsNeighboursApartWhereServersAreLevel) {
  const std::vector<NodeInfo> servers = WithServers({1, 2, 3});
  std::mt19937 random(3);
  std::vector<uint64_t> elements;
  for (int i = 0; i < 60; ++i) elements.push_back(100000 + random() % 100);
  const std::vector<KeyEntry> keys = KeysOf(elements);
  const std::vector<NodeId> owners = PlaceKeys(servers, keys);
  EXPECT_LE(CountNeighboursTogether(owners), 12);
  EXPECT_LE(Imbalance(servers, keys, owners), 1.05);
}

TEST(Placer, CountsWhatItPlacedBefore) {
  Placer placer(WithServers({1, 2}));
  const NodeId heavy = placer.Place(KeysOf({1000}))[0];
  for (const NodeId owner : placer.Place(KeysOf({400, 400, 200}))) EXPECT_NE(owner, heavy);
  EXPECT_EQ(placer.LoadOf(heavy).key_bytes, 4000u);
  EXPECT_EQ(placer.LoadOf(3 - heavy).key_bytes, 4000u);
  EXPECT_EQ(placer.LoadOf(3 - heavy).keys, 3u);
  EXPECT_EQ(placer.LoadOf(77).keys, 0u);
}

TEST(Placer, KeepsALaterKeyFromTheLastOneBefore) {
  Placer placer(WithServers({1, 2}));
  placer.Place(KeysOf({1000000, 1000000}));
  const std::vector<NodeId> small = placer.Place(KeysOf({1, 1, 1, 1}));
  EXPECT_EQ(CountNeighboursTogether(small), 0);
}

TEST(Placer, BalancesDenseAndOpaqueKeysEachAlone) {
  std::vector<KeyEntry> keys = KeysOf({1000, 1000, 1000, 1000});
  keys[0].kind = keys[1].kind = KeyKind::kBroadcast;
  const std::vector<NodeId> owners = PlaceKeys(WithServers({1, 2}), keys);
  EXPECT_NE(owners[0], owners[1]);
  EXPECT_NE(owners[2], owners[3]);
}

TEST(Placer, IsTheSameEveryTime) {
  const std::vector<NodeInfo> servers = WithServers({1, 2, 3});
  const std::vector<KeyEntry> keys = KeysOf({5, 9, 9, 3, 100, 7, 7, 2});
  EXPECT_EQ(PlaceKeys(servers, keys), PlaceKeys(servers, keys));
}

TEST(Placer, WhatIsRemovedWeighsNothing) {
  Placer placer(WithServers({5, 6}));
  const std::vector<KeyEntry> keys = KeysOf({100, 90});
  const std::vector<NodeId> owners = placer.Place(keys);
  ASSERT_NE(owners[0], owners[1]);
  placer.Remove(keys[0], owners[0]);
  EXPECT_EQ(placer.LoadOf(owners[0]).keys, 0u);
  EXPECT_EQ(placer.LoadOf(owners[0]).key_bytes, 0u);
  EXPECT_EQ(placer.LoadOf(owners[0]).server_bytes, 0u);
  EXPECT_EQ(placer.Place(KeysOf({80}))[0], owners[0]);
}

}  // namespace
}  // namespace bdn
