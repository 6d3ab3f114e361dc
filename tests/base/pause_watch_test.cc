#include "common/base/pause_watch.h"

#include "gtest/gtest.h"

namespace bdn {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(PauseWatch, CountsNothingWhileItsOwnerKeepsItsPromise) {
  PauseWatch watch(absl::Seconds(1));
  for (const double now : {100.0, 101.0, 101.5, 103.5, 103.5}) {
    EXPECT_EQ(watch.OnAwake(At(now)), absl::ZeroDuration()) << now;
    EXPECT_EQ(watch.NextTime(), At(now + 1));
  }
}

TEST(PauseWatch, CountsAllTheTimeInWhichNothingCouldBeSeen) {
  PauseWatch watch(absl::Seconds(1));
  watch.OnAwake(At(100));
  EXPECT_EQ(watch.OnAwake(At(104.5)), absl::Seconds(4.5));
  EXPECT_EQ(watch.OnAwake(At(105)), absl::ZeroDuration());
  EXPECT_EQ(watch.OnAwake(At(3600)), absl::Seconds(3495));
}

}  // namespace
}  // namespace bdn
