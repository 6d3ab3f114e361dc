#include "common/base/descriptors.h"

#include <sys/resource.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

class DescriptorsTest : public ::testing::Test {
 protected:
  DescriptorsTest() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorsTest() override { setrlimit(RLIMIT_NOFILE, &before_); }
  void Limit(rlim_t most) {
    rlimit limit = before_;
    limit.rlim_cur = most;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_{};
};

TEST_F(DescriptorsTest, WhoCannotHaveThemIsToldHowManyAndHow) {
  Limit(200);
  EXPECT_TRUE(CheckDescriptors(100, "this server").ok());
  const absl::Status status = CheckDescriptors(1000, "this server");
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("this server needs 1064 open files, and may have 200"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n 1064"));
}

TEST_F(DescriptorsTest, WhatEverybodyMayHaveIsTaken) {
  ASSERT_GT(before_.rlim_max, 200u);
  Limit(200);
  RaiseDescriptorLimit();
  rlimit now{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
}

}  // namespace
}  // namespace bdn
