#include "scheduler/waiting_calls.h"

#include <gtest/gtest.h>

#include <vector>

namespace bdn {
namespace {

using Kind = WaitSubject::Kind;

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(WaitingCalls, AreFoundUntilTheyAreTaken) {
  WaitingCalls calls;
  const WaitSubject subject{.kind = Kind::kBarrier, .barrier = "b"};
  const CallId id = calls.Add({.subject = subject, .node = 3});
  EXPECT_NE(id, 0u);
  EXPECT_NE(calls.NewId(), id);
  EXPECT_TRUE(calls.Has(subject, 3));
  EXPECT_FALSE(calls.Has(subject, 4));
  EXPECT_FALSE(calls.Has({.kind = Kind::kBarrier, .barrier = "c"}, 3));
  EXPECT_FALSE(calls.Has({.kind = Kind::kLeave, .barrier = "b"}, 3));
  EXPECT_EQ(calls.Take(id).subject, subject);
  EXPECT_EQ(calls.Find(id), nullptr);
  EXPECT_FALSE(calls.Has(subject, 3));
  EXPECT_TRUE(calls.All().empty());
}

TEST(WaitingCalls, AreToldApartInTheOrderInWhichTheyCame) {
  WaitingCalls calls;
  const WaitSubject leave{.kind = Kind::kLeave};
  const WaitSubject everybody{.kind = Kind::kJoin};
  const CallId first = calls.Add({.subject = leave, .node = 9, .deadline = At(5)});
  const CallId join = calls.Add({.subject = everybody, .node = 1, .deadline = At(3)});
  const CallId last = calls.Add({.subject = leave, .node = 2, .deadline = At(4)});
  EXPECT_EQ(calls.WaitingFor(leave), (std::vector<CallId>{first, last}));
  EXPECT_EQ(calls.All(), (std::vector<CallId>{first, join, last}));
  EXPECT_EQ(calls.NextDeadline(), At(3));
  EXPECT_TRUE(calls.Due(At(2)).empty());
  EXPECT_EQ(calls.Due(At(4)), (std::vector<CallId>{join, last}));
  calls.Take(join);
  EXPECT_EQ(calls.NextDeadline(), At(4));
}

TEST(WaitingCalls, ANodeMayWaitTwiceForTheSame) {
  WaitingCalls calls;
  const WaitSubject subject{.kind = Kind::kDeclare, .batch = 4};
  const CallId first = calls.Add({.subject = subject, .node = 3});
  calls.Add({.subject = subject, .node = 3});
  calls.Take(first);
  EXPECT_TRUE(calls.Has(subject, 3));
  EXPECT_TRUE(calls.Declares(3));
  EXPECT_FALSE(calls.Declares(4));
}

TEST(WaitingCalls, HaveNoDeadlineWhereThereAreNone) {
  EXPECT_EQ(WaitingCalls().NextDeadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace bdn
