#include "scheduler/placer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace bdn {
namespace {

Catalogue CatalogueOf(const std::vector<uint64_t>& elements) {
  Catalogue catalogue{.version = 1};
  for (size_t i = 0; i < elements.size(); ++i) {
    catalogue.keys.push_back(
        {.key = Key::Of(static_cast<uint32_t>(i), 0), .elements = elements[i]});
  }
  return catalogue;
}

Membership WithServers(const std::vector<NodeId>& ids) {
  Membership membership{.epoch = 3};
  for (const NodeId id : ids) {
    const auto rank = static_cast<Rank>(membership.servers.size());
    membership.servers.push_back({.id = id, .role = Role::kServer, .rank = rank});
  }
  return membership;
}

// The owners, in the order of the catalogue.
std::vector<NodeId> OwnersOf(const Catalogue& catalogue, const PlacementTable& placement) {
  std::vector<NodeId> owners;
  for (const KeyEntry& key : catalogue.keys) owners.push_back(placement.OwnerOf(key.key));
  return owners;
}

int CountNeighboursTogether(const std::vector<NodeId>& owners) {
  int together = 0;
  for (size_t i = 1; i < owners.size(); ++i) together += owners[i] == owners[i - 1];
  return together;
}

// Most over least loaded.
double Imbalance(const Membership& membership, const Catalogue& catalogue,
                 const PlacementTable& placement) {
  std::map<NodeId, uint64_t> loads;
  for (const NodeInfo& server : membership.servers) loads[server.id] = 0;
  for (const KeyEntry& key : catalogue.keys) loads.at(placement.OwnerOf(key.key)) += KeyBytes(key);
  uint64_t most = 0;
  uint64_t least = ~uint64_t{0};
  for (const auto& [server, bytes] : loads) {
    most = std::max(most, bytes);
    least = std::min(least, bytes);
  }
  return static_cast<double>(most) / static_cast<double>(least);
}

TEST(Placer, SpreadsEqualKeysInTurn) {
  const Membership membership = WithServers({4, 5, 6});
  const Catalogue catalogue = CatalogueOf(std::vector<uint64_t>(9, 1000));
  const PlacementTable placement = PlaceKeys(membership, catalogue, {});
  EXPECT_EQ(Imbalance(membership, catalogue, placement), 1.0);
  EXPECT_EQ(CountNeighboursTogether(OwnersOf(catalogue, placement)), 0);
}

TEST(Placer, BalancesUnevenKeysWithinFivePercent) {
  std::mt19937 random(7);
  for (const size_t num_servers : {2u, 3u, 5u, 8u}) {
    std::vector<NodeId> servers;
    for (size_t i = 0; i < num_servers; ++i) servers.push_back(static_cast<NodeId>(10 + i));
    const Membership membership = WithServers(servers);
    std::vector<uint64_t> elements;
    for (int i = 0; i < 200; ++i) elements.push_back(1 + random() % 1000000);
    const Catalogue catalogue = CatalogueOf(elements);
    const PlacementTable placement = PlaceKeys(membership, catalogue, {});
    EXPECT_LE(Imbalance(membership, catalogue, placement), 1.05) << num_servers << " servers";
  }
}

TEST(Placer, KeepsNeighboursApartWhereServersAreLevel) {
  const Membership membership = WithServers({1, 2, 3});
  std::mt19937 random(3);
  std::vector<uint64_t> elements;
  for (int i = 0; i < 60; ++i) elements.push_back(100000 + random() % 100);
  const Catalogue catalogue = CatalogueOf(elements);
  const PlacementTable placement = PlaceKeys(membership, catalogue, {});
  EXPECT_LE(CountNeighboursTogether(OwnersOf(catalogue, placement)), 12);
  EXPECT_LE(Imbalance(membership, catalogue, placement), 1.05);
}

TEST(Placer, CountsWhatIsPlacedAndLeavesItThere) {
  const Membership membership = WithServers({1, 2});
  const PlacementTable first = PlaceKeys(membership, CatalogueOf({1000}), {});
  Catalogue grown = CatalogueOf({1000, 400, 400, 200});
  grown.version = 2;
  const PlacementTable second = PlaceKeys(membership, grown, first);
  const std::vector<NodeId> owners = OwnersOf(grown, second);
  EXPECT_EQ(owners[0], first.OwnerOf(grown.keys[0].key));
  for (size_t i = 1; i < owners.size(); ++i) EXPECT_NE(owners[i], owners[0]);
}

TEST(Placer, BalancesDenseAndOpaqueKeysEachAlone) {
  Catalogue catalogue = CatalogueOf({1000, 1000, 1000, 1000});
  catalogue.keys[0].kind = catalogue.keys[1].kind = KeyKind::kBroadcast;
  const auto owners = OwnersOf(catalogue, PlaceKeys(WithServers({1, 2}), catalogue, {}));
  EXPECT_NE(owners[0], owners[1]);
  EXPECT_NE(owners[2], owners[3]);
}

TEST(Placer, IsTheSameEveryTime) {
  const Membership membership = WithServers({1, 2, 3});
  const Catalogue catalogue = CatalogueOf({5, 9, 9, 3, 100, 7, 7, 2});
  EXPECT_EQ(PlaceKeys(membership, catalogue, {}), PlaceKeys(membership, catalogue, {}));
}

TEST(Placer, NamesTheEpochAndTheCatalogueThatItPlaces) {
  const PlacementTable placement = PlaceKeys(WithServers({1}), CatalogueOf({5}), {});
  EXPECT_EQ(placement.version(), (PlacementVersion{.epoch = 3, .catalogue = 1}));
}

}  // namespace
}  // namespace bdn
