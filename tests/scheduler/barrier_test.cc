#include "scheduler/barrier.h"

#include <gtest/gtest.h>

#include <string>

namespace bdn {
namespace {

// Ids need not rise with ranks, nor ranks begin at 0.
constexpr RosterMember kLow = {.rank = 1, .node = 9};
constexpr RosterMember kHigh = {.rank = 3, .node = 4};

TEST(Barrier, KnowsWhoIsMissing) {
  Barrier barrier({kLow, kHigh});
  EXPECT_TRUE(barrier.empty());
  EXPECT_EQ(barrier.Missing(), "worker 1, worker 3");
  barrier.Arrive(kHigh);
  barrier.Arrive(kHigh);
  EXPECT_FALSE(barrier.full());
  EXPECT_EQ(barrier.Missing(), "worker 1");
  barrier.Arrive(kLow);
  EXPECT_TRUE(barrier.full());
  EXPECT_EQ(barrier.Missing(), "");
  EXPECT_EQ(barrier.present(), (Roster{kLow, kHigh}));
}

TEST(Barrier, WhoWithdrawsHasNotCome) {
  Barrier barrier({kLow, kHigh});
  barrier.Arrive(kLow);
  barrier.Withdraw(kLow);
  EXPECT_FALSE(barrier.Has(kLow));
  EXPECT_TRUE(barrier.empty());
}

TEST(Barrier, OfManyItNamesTheFirst) {
  Roster roster;
  for (Rank rank = 0; rank < 100; ++rank) roster.insert({.rank = rank, .node = 1});
  const std::string missing = Barrier(roster).Missing();
  EXPECT_EQ(missing.substr(0, 20), "worker 0, worker 1, ");
  EXPECT_EQ(missing.substr(missing.size() - 20), "worker 7 and 92 more");
}

TEST(Barrier, AnotherNodeOfTheSameRankIsAnotherMember) {
  Barrier barrier({kLow, kHigh});
  barrier.Arrive(kLow);
  EXPECT_FALSE(barrier.Has({.rank = kLow.rank, .node = 77}));
}

}  // namespace
}  // namespace bdn
