#include "common/cluster/membership.h"

#include <gtest/gtest.h>

#include "common/cluster/worker_names.h"

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

TEST(NameOfWorker, IsOfAHostWhereRanksAreOfProcesses) {
  EXPECT_EQ(NameOfWorker(1, {}), "worker 1");
  const std::vector<int> alone = {1, 1}, mixed = {1, 2, 1};
  EXPECT_EQ(NameOfWorker(1, alone), "worker 1");
  EXPECT_EQ(NameOfWorker(0, mixed), "worker 0");
  EXPECT_EQ(NameOfWorker(1, mixed), "host 1 (ranks 1-2)");
  EXPECT_EQ(NameOfWorker(2, mixed), "host 2 (rank 3)") << "worker 3, of the processes' ranks";
  EXPECT_EQ(NameOfWorker(7, mixed), "worker 7") << "what a server says may be anything";
  EXPECT_EQ(NameOfWorker(-1, mixed), "worker -1");
}

}  // namespace
}  // namespace bdn
