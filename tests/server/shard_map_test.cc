#include "server/shard_map.h"

#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

TEST(ShardMapTest, GivesEachNewKeyToTheShardWithTheFewestBytes) {
  ShardMap map(2);
  EXPECT_EQ(map.Add(MakeEntry(Key::Of(0, 0), {.segments = {10}})), 0u);
  EXPECT_EQ(map.Add(MakeEntry(Key::Of(1, 0), {.dtype = DType::kFloat64, .segments = {4}})), 1u);
  EXPECT_EQ(map.Add(MakeEntry(Key::Of(2, 0), {.segments = {10}})), 1u);
  EXPECT_EQ(map.Add(MakeEntry(Key::Of(3, 0), {.segments = {1}})), 0u);
  EXPECT_EQ(map.PlaceOf(Key::Of(2, 0)).shard, 1u);
  EXPECT_EQ(map.PlaceOf(Key::Of(3, 0)).shard, 0u);
}

TEST(ShardMapTest, AKeyIsAsUrgentAsTheMostUrgentPushOfTheStepThatWasPushedLast) {
  ShardMap map;
  const Key key = Key::Of(0, 0);
  map.Add(MakeEntry(key));
  EXPECT_EQ(map.PlaceOf(key).priority, 0);
  map.NotePush(key, 1, -5);
  map.NotePush(key, 1, -3);
  map.NotePush(key, 1, -4);
  EXPECT_EQ(map.PlaceOf(key).priority, -3);
  map.NotePush(key, 2, -9);
  EXPECT_EQ(map.PlaceOf(key).priority, -9);
  map.NotePush(Key::Of(1, 0), 1, 7);
  EXPECT_EQ(map.PlaceOf(Key::Of(1, 0)).priority, 0) << "which is not here";
}

TEST(ShardMapTest, TheFirstShardAnswersForKeysThatAreNotHere) {
  const ShardMap map(2);
  EXPECT_FALSE(map.Has(Key::Of(0, 0)));
  EXPECT_EQ(map.PlaceOf(Key::Of(0, 0)).shard, 0u);
}

TEST(ShardMapTest, WhatIsRemovedWeighsNothing) {
  ShardMap map(2);
  map.Add(MakeEntry(Key::Of(0, 0), {.segments = {10}}));
  map.Add(MakeEntry(Key::Of(1, 0), {.segments = {5}}));
  map.Remove(Key::Of(0, 0));
  EXPECT_FALSE(map.Has(Key::Of(0, 0)));
  EXPECT_EQ(map.Add(MakeEntry(Key::Of(2, 0), {.segments = {1}})), 0u);
}

}  // namespace
}  // namespace bdn::testing
