#include "scheduler/barrier.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(RanksOf(barrier.present()), (std::vector<Rank>{1, 3}));
}

TEST(Barrier, WhoWithdrawsHasNotCome) {
  Barrier barrier({kLow, kHigh});
  barrier.Arrive(kLow);
  barrier.Withdraw(kLow);
  EXPECT_FALSE(barrier.Has(kLow));
  EXPECT_TRUE(barrier.empty());
}

TEST(Barrier, AnotherNodeOfTheSameRankIsAnotherMember) {
  Barrier barrier({kLow, kHigh});
  barrier.Arrive(kLow);
  EXPECT_FALSE(barrier.Has({.rank = kLow.rank, .node = 77}));
}

}  // namespace
}  // namespace bdn
