#include "common/cluster/membership.h"

#include <gtest/gtest.h>

namespace bdn {
namespace {

TEST(Membership, FindsEveryNodeByItsId) {
  Membership membership{.epoch = 1};
  membership.workers = {{.id = 9, .rank = 0}, {.id = 4, .rank = 1}};
  membership.servers = {{.id = 7, .role = Role::kServer, .rank = 0}};
  membership.MakeIndex();
  ASSERT_NE(membership.Find(4), nullptr);
  EXPECT_EQ(membership.Find(4)->rank, 1);
  ASSERT_NE(membership.Find(7), nullptr);
  EXPECT_EQ(membership.Find(7)->role, Role::kServer);
  EXPECT_EQ(membership.Find(5), nullptr);
  EXPECT_EQ(membership.Find(0), nullptr);
}

TEST(Membership, ACopyFindsItsOwnNodes) {
  Membership membership{.epoch = 1};
  membership.workers = {{.id = 9, .rank = 0}};
  membership.MakeIndex();
  const Membership copy = membership;
  EXPECT_EQ(copy.Find(9), &copy.workers[0]);
}

}  // namespace
}  // namespace bdn
