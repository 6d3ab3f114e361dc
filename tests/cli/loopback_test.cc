#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cli/local_job.h"

namespace bdn::cli {
namespace {

std::string ChosenOf(const std::set<std::string>& there) {
  return ChooseLoopback([&](const std::string& address) { return there.count(address) != 0; });
}

TEST(Loopback, IsIpv4WhereItIsThere) {
  EXPECT_EQ(ChosenOf({"127.0.0.1", "::1"}), "127.0.0.1");
  EXPECT_EQ(ChosenOf({"127.0.0.1"}), "127.0.0.1");
}

TEST(Loopback, IsIpv6WhereOnlyThatIsThere) { EXPECT_EQ(ChosenOf({"::1"}), "::1"); }

TEST(Loopback, OfNoneIsTheOneWhoseErrorPeopleKnow) { EXPECT_EQ(ChosenOf({}), "127.0.0.1"); }

}  // namespace
}  // namespace bdn::cli
