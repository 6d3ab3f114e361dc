#include "common/base/daemon.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <future>

#include "common/base/file_descriptor.h"
#include "common/base/status.h"

namespace bdn {
namespace {

TEST(RunUntilSignal, ReturnsWhenTheJobDoes) {
  const FileDescriptor signal(eventfd(0, EFD_CLOEXEC));
  bool ran = false;
  EXPECT_FALSE(RunUntilSignal(
      signal.get(), [&] { ran = true; }, [] { ADD_FAILURE() << "nobody ended it"; }));
  EXPECT_TRUE(ran);
}

TEST(RunUntilSignal, EndsTheJobOnASignal) {
  const FileDescriptor signal(eventfd(1, EFD_CLOEXEC));
  std::promise<void> ended;
  EXPECT_TRUE(RunUntilSignal(
      signal.get(), [&] { ended.get_future().wait(); }, [&] { ended.set_value(); }));
}

TEST(MayServeNext, WhereAnotherJobMayEndOtherwise) {
  const absl::Status wrong = InvalidArgument("a setting");
  EXPECT_TRUE(MayServeNext({.result = absl::OkStatus(), .started = true}));
  EXPECT_TRUE(MayServeNext({.result = wrong, .started = true}));
  EXPECT_TRUE(MayServeNext({.result = Aborted("the job")}));
  EXPECT_TRUE(MayServeNext({.result = Unavailable("the scheduler")}));
  EXPECT_TRUE(MayServeNext({.result = DeadlineExceeded("others")}));
  EXPECT_FALSE(MayServeNext({.result = wrong})) << "it would be so again";
  EXPECT_FALSE(MayServeNext({.result = absl::OkStatus(), .started = true, .signalled = true}));
}

}  // namespace
}  // namespace bdn
