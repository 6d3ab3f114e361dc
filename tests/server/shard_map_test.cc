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
  EXPECT_EQ(map.ShardOf(Key::Of(2, 0)), 1u);
  EXPECT_EQ(map.ShardOf(Key::Of(3, 0)), 0u);
}

TEST(ShardMapTest, TheFirstShardAnswersForKeysThatAreNotHere) {
  const ShardMap map(2);
  EXPECT_FALSE(map.Has(Key::Of(0, 0)));
  EXPECT_EQ(map.ShardOf(Key::Of(0, 0)), 0u);
}

}  // namespace
}  // namespace bdn::testing
