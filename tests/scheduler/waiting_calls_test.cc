#include "scheduler/waiting_calls.h"

#include <gtest/gtest.h>

#include <vector>

namespace bdn {
namespace {

using Kind = WaitingCall::Kind;

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(WaitingCalls, AreFoundUntilTheyAreTaken) {
  WaitingCalls calls;
  const CallId id = calls.Add({.kind = Kind::kBarrier, .node = 3, .barrier = "b"});
  EXPECT_NE(id, 0u);
  EXPECT_NE(calls.NewId(), id);
  EXPECT_TRUE(calls.Has(Kind::kBarrier, 3, "b"));
  EXPECT_FALSE(calls.Has(Kind::kBarrier, 3, "c"));
  EXPECT_FALSE(calls.Has(Kind::kLeave, 3, "b"));
  EXPECT_EQ(calls.Take(id).barrier, "b");
  EXPECT_EQ(calls.Find(id), nullptr);
  EXPECT_FALSE(calls.Has(Kind::kBarrier, 3, "b"));
}

TEST(WaitingCalls, AreToldApartInTheOrderInWhichTheyCame) {
  WaitingCalls calls;
  const CallId first = calls.Add({.kind = Kind::kLeave, .node = 9, .deadline = At(5)});
  calls.Add({.kind = Kind::kJoin, .node = 1, .deadline = At(3)});
  const CallId last = calls.Add({.kind = Kind::kLeave, .node = 2, .deadline = At(7)});
  EXPECT_EQ(calls.Where([](const WaitingCall& call) { return call.kind == Kind::kLeave; }),
            (std::vector<CallId>{first, last}));
  EXPECT_EQ(calls.NextDeadline(), At(3));
}

TEST(WaitingCalls, HaveNoDeadlineWhereThereAreNone) {
  EXPECT_EQ(WaitingCalls().NextDeadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace bdn
