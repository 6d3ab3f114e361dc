#include "common/base/log_limit.h"

#include <sys/resource.h>

#include "common/base/descriptors.h"
#include "common/base/link_security.h"
#include "common/base/secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace bdn {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(LimitedLog, SaysOneLineInAnIntervalAndHowManyItLeftOut) {
  ManualClock clock;
  LimitedLog log(&clock, absl::Seconds(1));
  uint64_t left_out = 99;
  EXPECT_TRUE(log.MayLog(&left_out));
  EXPECT_EQ(left_out, 0u);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(log.MayLog(&left_out));
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(log.MayLog(&left_out));
  EXPECT_EQ(left_out, 1000u);
  clock.Advance(absl::Seconds(5));
  EXPECT_TRUE(log.MayLog(&left_out));
  EXPECT_EQ(left_out, 0u);
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(Printable("job \"a\"\n\x1b[31m\xff"), "job \"a\"\\x0a\\x1b[31m\\xff");
  EXPECT_EQ(Printable(std::string(1000, 'x')), std::string(128, 'x') + "...");
}

TEST(LogLine, IsOneLineWhateverItHolds) {
  ::testing::internal::CaptureStderr();
  LogError("worker 1 said: %s", "first\nsecond\r\x1b[31m \xc3\xa9");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              EndsWith("worker 1 said: first\\nsecond\\x0d\\x1b[31m \xc3\xa9\n"));
}

TEST(Secret, IsNeverTheSame) {
  EXPECT_EQ(RandomSecret().size(), 32u);
  EXPECT_NE(RandomSecret(), RandomSecret());
  EXPECT_TRUE(IsSameSecret("", ""));
  EXPECT_TRUE(IsSameSecret("secret", "secret"));
  for (const char* other : {"", "secre", "secret!", "Secret", "secreT"}) {
    EXPECT_FALSE(IsSameSecret("secret", other)) << other;
  }
}

TEST(PublicKey, IsOf32BytesOrNone) {
  const std::string bytes(32, 'k');
  EXPECT_EQ(PublicKey::FromBytes(bytes)->view(), bytes);
  EXPECT_TRUE(PublicKey::FromBytes("")->empty());
  EXPECT_EQ(PublicKey().view(), "");
  for (const size_t size : {1, 31, 33, 64}) {
    EXPECT_FALSE(PublicKey::FromBytes(std::string(size, 'k')).ok()) << size;
  }
}

TEST(Descriptors, AreRaisedAndCountedBeforeTheyAreMissing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(CheckDescriptors(100, "this server").ok());
  const absl::Status lacking = CheckDescriptors(1100, "this server");
  EXPECT_EQ(lacking.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(lacking.message()), HasSubstr("this server needs 1164 open files"));
  EXPECT_THAT(std::string(lacking.message()), HasSubstr("may have 256"));

  RaiseDescriptorLimit();
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace bdn
