#include "common/base/rank_group.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

std::string TextOf(std::vector<Rank> ranks) { return RankGroup::Of(std::move(ranks))->ToString(); }

TEST(RankGroup, IsOfAllRanksUnlessItWasMadeOfSome) {
  const RankGroup all;
  EXPECT_TRUE(all.is_all());
  EXPECT_TRUE(all.Has(1000000));
  EXPECT_EQ(all.ToString(), "all ranks");
  const RankGroup some = *RankGroup::Of({5, 1});
  EXPECT_FALSE(some.is_all());
  EXPECT_TRUE(some.Has(1));
  EXPECT_FALSE(some.Has(2));
  EXPECT_EQ(some.ranks(), (std::vector<Rank>{1, 5}));
}

TEST(RankGroup, IsTheSameWhateverTheOrderOfItsRanks) {
  EXPECT_EQ(*RankGroup::Of({2, 0, 1}), *RankGroup::Of({0, 1, 2}));
  EXPECT_NE(*RankGroup::Of({0, 1}), *RankGroup::Of({0, 1, 2}));
  // Of a job of one worker these are the same workers, and yet two groups.
  EXPECT_NE(*RankGroup::Of({0}), RankGroup());
  EXPECT_LT(RankGroup(), *RankGroup::Of({0}));
  EXPECT_LT(*RankGroup::Of({0, 9}), *RankGroup::Of({1}));
  const absl::flat_hash_set<RankGroup> groups = {RankGroup(), *RankGroup::Of({0, 1}),
                                                 *RankGroup::Of({1, 0})};
  EXPECT_EQ(groups.size(), 2u);
}

TEST(RankGroup, RefusesListsThatAreNoGroup) {
  EXPECT_EQ(RankGroup::Of({}).status().message(), "a group of ranks needs at least one rank");
  EXPECT_EQ(RankGroup::Of({0, 2, 2}).status().message(), "a group lists rank 2 twice");
  EXPECT_EQ(RankGroup::Of({0, -1}).status().message(), "rank -1 of a group is negative");
}

TEST(RankGroup, HasAShortTextThatIsReadBack) {
  EXPECT_EQ(TextOf({3}), "ranks 3");
  EXPECT_EQ(TextOf({0, 1}), "ranks 0, 1");
  EXPECT_EQ(TextOf({0, 1, 2, 3, 8}), "ranks 0-3, 8");
  EXPECT_EQ(TextOf({0, 8, 16, 24}), "ranks 0-24/8");
  EXPECT_EQ(TextOf({0, 5, 6, 7, 8}), "ranks 0, 5-8");
  EXPECT_EQ(TextOf({2, 9, 20}), "ranks 2, 9, 20");
  for (const std::vector<Rank>& ranks :
       {std::vector<Rank>{0}, {0, 1}, {0, 2, 4}, {0, 1, 2, 4, 6, 8, 100}, {7, 9, 10, 11, 50}}) {
    const RankGroup group = *RankGroup::Of(ranks);
    const auto read = RankGroup::Parse(group.ToString());
    ASSERT_TRUE(read.ok()) << group.ToString();
    EXPECT_EQ(*read, group);
  }
  EXPECT_EQ(*RankGroup::Parse("all ranks"), RankGroup());
}

TEST(RankGroup, ReadsNothingElse) {
  for (const std::string text :
       {"", "ranks", "ranks ", "ranks x", "ranks 1,2", "ranks 3-1", "ranks 1-", "ranks -1",
        "ranks 0-9/0", "ranks 0-9/-1", "ranks 1, 1", "ranks 0-2147483647", "ranks 99999999999",
        "ranks 1, ", "rank 1"}) {
    EXPECT_FALSE(RankGroup::Parse(text).ok()) << text;
  }
}

TEST(RankGroup, GoesIntoANameAndOutOfIt) {
  const RankGroup group = *RankGroup::Of({0, 1, 2});
  EXPECT_EQ(NameAmong("epoch", group), "epoch among ranks 0-2");
  EXPECT_EQ(NameAmong("epoch", RankGroup()), "epoch");
  EXPECT_EQ(GroupInName("epoch among ranks 0-2"), group);
  EXPECT_EQ(GroupInName("a among ranks 5 among ranks 0-2"), group);
  EXPECT_TRUE(GroupInName("epoch").is_all());
  EXPECT_TRUE(GroupInName("among ranks 0-2").is_all());
  EXPECT_TRUE(GroupInName("epoch among ranks").is_all());
  EXPECT_TRUE(GroupInName("among ranks of men").is_all());
}

}  // namespace
}  // namespace bdn
