#include "server/late_workers.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Key kOne = Key::Of(1, 0);
constexpr Key kOther = Key::Of(2, 0);

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
NodeWait Wait(NodeId node, double seconds) { return {node, absl::Seconds(seconds)}; }

TEST(LateWorkers, CountsFromTheFirstLookThatFoundTheRoundOpen) {
  LateWorkers late;
  late.Look({{kOne, 5, {1, 2}}}, At(10));
  EXPECT_THAT(late.Waits(), ElementsAre(Wait(1, 0), Wait(2, 0)));
  late.Look({{kOne, 5, {2}}}, At(13));
  EXPECT_THAT(late.Waits(), ElementsAre(Wait(2, 3))) << "node 1 has pushed meanwhile";
  late.Look({}, At(14));
  EXPECT_THAT(late.Waits(), IsEmpty());
}

TEST(LateWorkers, AnotherStepBeginsAnew) {
  LateWorkers late;
  late.Look({{kOne, 5, {1}}}, At(0));
  late.Look({{kOne, 6, {1}}}, At(100));
  EXPECT_THAT(late.Waits(), ElementsAre(Wait(1, 0)))
      << "it is slow, but it pushes: each round is as long as it takes";
  late.Look({}, At(101));
  late.Look({{kOne, 6, {1}}}, At(102));
  EXPECT_THAT(late.Waits(), ElementsAre(Wait(1, 0)));
}

TEST(LateWorkers, TheOldestRoundOfSeveralKeysCounts) {
  LateWorkers late;
  late.Look({{kOne, 5, {1}}}, At(0));
  late.Look({{kOne, 5, {1}}, {kOther, 5, {1, 3}}}, At(4));
  EXPECT_THAT(late.Waits(), ElementsAre(Wait(1, 4), Wait(3, 0)));
}

TEST(LateWorkers, OfSeveralShardsTheLongestWaitCounts) {
  EXPECT_THAT(LongestWaits({Wait(1, 4), Wait(3, 1)}, {Wait(0, 2), Wait(3, 9)}),
              ElementsAre(Wait(0, 2), Wait(1, 4), Wait(3, 9)));
  EXPECT_THAT(LongestWaits({}, {}), IsEmpty());
}

}  // namespace
}  // namespace bdn
