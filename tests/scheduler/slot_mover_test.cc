#include "scheduler/slot_mover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Servers of these nodes, of rising ranks, in an epoch.
Membership Of(Epoch epoch, const std::vector<NodeId>& nodes) {
  Membership membership{.epoch = epoch};
  for (const NodeId node : nodes) {
    membership.servers.push_back(
        {.id = node, .role = Role::kServer, .rank = static_cast<Rank>(node)});
  }
  return membership;
}

// The number of slots of a home, by the server that answers for them.
std::map<NodeId, int> CountsOf(const Membership& membership, NodeId home) {
  std::map<NodeId, int> counts;
  for (const SlotOwner& owner : membership.moved.at(home)) ++counts[owner.server];
  return counts;
}

TEST(SlotMover, AlikeServersGetAlikeShares) {
  Membership membership = Of(2, {1, 3});
  MoveSlots(2, {{1, 160}, {2, 160}, {3, 160}}, &membership);
  EXPECT_THAT(CountsOf(membership, 2), ElementsAre(Pair(1, 8), Pair(3, 8)));
  EXPECT_EQ(membership.moved.size(), 1u);
  for (const SlotOwner& owner : membership.moved.at(2)) EXPECT_EQ(owner.since, 2u);
  // The lower rank comes first.
  EXPECT_EQ(membership.moved.at(2)[0].server, 1u);
  EXPECT_EQ(membership.moved.at(2)[1].server, 3u);
}

TEST(SlotMover, TheLessLoadedServerGetsMore) {
  Membership membership = Of(2, {1, 3});
  MoveSlots(2, {{1, 320}, {2, 160}, {3, 240}}, &membership);
  // 320 and 400, of 720 in all.
  EXPECT_THAT(CountsOf(membership, 2), ElementsAre(Pair(1, 4), Pair(3, 12)));
}

TEST(SlotMover, SlotsOfNoBytesAreSpreadAsWell) {
  Membership membership = Of(2, {1, 3});
  MoveSlots(2, {{1, 0}, {2, 0}, {3, 0}}, &membership);
  EXPECT_THAT(CountsOf(membership, 2), ElementsAre(Pair(1, 8), Pair(3, 8)));
}

TEST(SlotMover, WhatHadMovedToAServerMovesOnWithItsOwn) {
  const HomeBytes homes = {{1, 160}, {2, 160}, {3, 160}};
  Membership membership = Of(2, {1, 3});
  MoveSlots(2, homes, &membership);
  const Slots before = membership.moved.at(2);
  membership.servers.erase(membership.servers.begin());
  membership.epoch = 3;
  MoveSlots(1, homes, &membership);
  EXPECT_THAT(CountsOf(membership, 1), ElementsAre(Pair(3, 16)));
  EXPECT_THAT(CountsOf(membership, 2), ElementsAre(Pair(3, 16)));
  for (size_t i = 0; i < kSlots; ++i) {
    // A slot that stays keeps the epoch since which it does.
    const Epoch since = before[i].server == 3 ? 2u : 3u;
    EXPECT_EQ(membership.moved.at(2)[i].since, since);
  }
}

TEST(SlotMover, WithoutAServerNobodyAnswersUntilOneJoins) {
  Membership membership = Of(2, {});
  MoveSlots(1, {{1, 160}}, &membership);
  for (const SlotOwner& owner : membership.moved.at(1)) EXPECT_EQ(owner, (SlotOwner{0, 2}));
  membership.epoch = 3;
  GiveFreeSlots(7, &membership);
  for (const SlotOwner& owner : membership.moved.at(1)) EXPECT_EQ(owner, (SlotOwner{7, 3}));
  // The newcomer is no home. It is lost in turn, and has no slots of its own.
  membership.epoch = 4;
  MoveSlots(7, {{1, 160}}, &membership);
  EXPECT_EQ(membership.moved.size(), 1u);
  EXPECT_THAT(CountsOf(membership, 1), ElementsAre(Pair(0, 16)));
}

TEST(SlotMover, OneInThePlaceOfALostServerGetsWhatThatHad) {
  const HomeBytes homes = {{1, 160}, {2, 160}, {3, 160}};
  Membership membership = Of(2, {1, 3});
  MoveSlots(2, homes, &membership);
  membership = [&] {
    Membership next = Of(3, {3, 4});
    next.moved = membership.moved;
    return next;
  }();
  GiveSlots(1, 4, homes, &membership);
  EXPECT_THAT(CountsOf(membership, 1), ElementsAre(Pair(4, 16)));
  EXPECT_THAT(CountsOf(membership, 2), ElementsAre(Pair(3, 8), Pair(4, 8)));
}

TEST(SlotMover, TheLargestLoadsDoNotOverflow) {
  const uint64_t most = uint64_t{1} << 60;
  Membership membership = Of(2, {1, 3});
  MoveSlots(2, {{1, most}, {2, most}, {3, 0}}, &membership);
  EXPECT_THAT(CountsOf(membership, 2), ElementsAre(Pair(3, 16)));
}

}  // namespace
}  // namespace bdn
