#include "common/base/daemon.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace bdn {
namespace {

TEST(MayServeNext, WhereAnotherJobMayEndOtherwise) {
  const absl::Status wrong = InvalidArgument("a setting");
  EXPECT_TRUE(MayServeNext({.result = absl::OkStatus(), .started = true}));
  EXPECT_TRUE(MayServeNext({.result = wrong, .started = true}));
  EXPECT_TRUE(MayServeNext({.result = Aborted("the job")}));
  EXPECT_TRUE(MayServeNext({.result = Unavailable("the scheduler")}));
  EXPECT_TRUE(MayServeNext({.result = DeadlineExceeded("others")}));
  EXPECT_FALSE(MayServeNext({.result = wrong})) << "it would be so again";
}

}  // namespace
}  // namespace bdn
