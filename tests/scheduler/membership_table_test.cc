#include "scheduler/membership_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Time kStart = absl::UnixEpoch();

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

class MembershipTableTest : public ::testing::Test {
 protected:
  absl::StatusOr<NodeId> Add(Role role, Rank rank, const std::string& host = "h:1") {
    JoinRequest request;
    request.role = role;
    request.wanted_rank = rank;
    request.host = host;
    return table_.Add(request, At(0));
  }
  void Fill() {
    for (const Rank rank : {0, 1}) ASSERT_TRUE(Add(Role::kWorker, rank).ok());
    ASSERT_TRUE(Add(Role::kServer, 0).ok());
    table_.Freeze(At(0));
  }

  MembershipTable table_{2, 2, 1, absl::Seconds(5)};
};

TEST_F(MembershipTableTest, NamesEveryoneWhoIsMissing) {
  EXPECT_EQ(table_.Missing(), "worker rank 0, worker rank 1, server rank 0 (0 of 3 have joined)");
  ASSERT_TRUE(Add(Role::kWorker, 0).ok());
  EXPECT_EQ(table_.Missing(), "worker rank 1, server rank 0 (1 of 3 have joined)");
  ASSERT_TRUE(Add(Role::kServer, -1).ok());
  EXPECT_EQ(table_.Missing(), "worker rank 1 (2 of 3 have joined)");
  EXPECT_FALSE(table_.full());
}

TEST_F(MembershipTableTest, GivesFreeRanksOnlyWhenAllNodesHaveJoined) {
  const NodeId any = *Add(Role::kWorker, -1);
  const NodeId zero = *Add(Role::kWorker, 0);
  ASSERT_TRUE(Add(Role::kServer, -1).ok());
  ASSERT_TRUE(table_.full());
  table_.Freeze(At(0));
  EXPECT_EQ(table_.Find(any)->info.rank, 1);
  EXPECT_EQ(table_.Find(zero)->info.rank, 0);
  EXPECT_EQ(table_.membership()->workers[0].id, zero);
  EXPECT_EQ(table_.membership()->epoch, 1u);
}

TEST_F(MembershipTableTest, BeginsWithTheFirstRanksAndTheOthersAreVacant) {
  MembershipTable table(4, 2, 1, absl::Seconds(5));
  JoinRequest request{.role = Role::kWorker, .wanted_rank = 2, .processes = 3};
  EXPECT_TRUE(table.ComesLater(request));
  EXPECT_FALSE(table.ComesLater({.role = Role::kServer, .wanted_rank = 2}));
  EXPECT_EQ(table.Missing(), "worker rank 0, worker rank 1, server rank 0 (0 of 3 have joined)");
  request.wanted_rank = 1;
  EXPECT_FALSE(table.ComesLater(request));
  ASSERT_TRUE(table.Add(request, At(0)).ok());
  request.wanted_rank = -1;
  EXPECT_FALSE(table.ComesLater(request));
  ASSERT_TRUE(table.Add(request, At(0)).ok());
  EXPECT_TRUE(table.ComesLater(request)) << "all with which the job begins are there";
  request.wanted_rank = 1;
  EXPECT_FALSE(table.ComesLater(request)) << "it is to hear who has its rank";
  EXPECT_EQ(table.Add(request, At(0)).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(table.Add({.role = Role::kServer}, At(0)).ok());
  ASSERT_TRUE(table.full());
  table.Freeze(At(0));
  EXPECT_THAT(table.membership()->vacant, ElementsAre(2, 3));
  EXPECT_EQ(table.membership()->workers.size(), 2u);
  EXPECT_THAT(table.ProcessesOfWorkers(), ElementsAre(3, 3, 3, 3));
  EXPECT_EQ(table.VacantWorkerRank(-1), 2);
  EXPECT_EQ(table.VacantWorkerRank(3), 3);
  EXPECT_THAT(table.LostRanks(), IsEmpty());
  table.Evict(1, absl::AbortedError("gone"));
  EXPECT_THAT(table.LostRanks(), ElementsAre(1));
  EXPECT_THAT(table.membership()->vacant, ElementsAre(1, 2, 3));
}

TEST_F(MembershipTableTest, WhatANodeCountsNeverFalls) {
  const NodeId node = *Add(Role::kServer, 0);
  table_.Report(node, {.step = 20, .bytes_sent = 5, .held = {.weights = 8}, .ended = 3});
  table_.Report(node, {.step = 19, .bytes_sent = 7, .held = {.weights = 4}, .ended = 2});
  const NodeProgress& progress = table_.Find(node)->progress;
  EXPECT_EQ(progress.step, 20u);
  EXPECT_EQ(progress.ended, 3u);
  EXPECT_EQ(progress.bytes_sent, 7u);
  EXPECT_EQ(progress.held.weights, 4u);
}

TEST_F(MembershipTableTest, RefusesAPublicKeyThatAnotherNodeHas) {
  JoinRequest request{.role = Role::kServer, .host = "first:7", .public_key = {{1, 2, 3}}};
  ASSERT_TRUE(table_.Add(request, At(0)).ok());
  request.role = Role::kWorker;
  request.host = "second:8";
  const absl::Status taken = table_.Add(request, At(0)).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.message()), HasSubstr("second:8"));
  EXPECT_THAT(std::string(taken.message()), HasSubstr("node 1 (first:7)"));
  // No key is no key, of as many nodes as there are.
  request.public_key = {};
  EXPECT_TRUE(table_.Add(request, At(0)).ok());
  EXPECT_TRUE(table_.Add(request, At(0)).ok());
}

TEST_F(MembershipTableTest, FreeRanksGoByHostAndProcessWhateverTheOrderOfComing) {
  const std::vector<std::string> hosts = {"node2:70", "node2:100", "node10:5"};
  std::vector<std::string> coming = hosts;
  do {
    MembershipTable table(4, 4, 1, absl::Seconds(5));
    JoinRequest request{.role = Role::kWorker};
    for (const std::string& host : coming) {
      request.host = host;
      ASSERT_TRUE(table.Add(request, At(0)).ok());
    }
    request.host = "a:1";
    request.wanted_rank = 1;  // keeps its place
    ASSERT_TRUE(table.Add(request, At(0)).ok());
    ASSERT_TRUE(table.Add({.role = Role::kServer}, At(0)).ok());
    table.Freeze(At(0));
    const std::vector<NodeInfo>& workers = table.membership()->workers;
    EXPECT_EQ(workers[0].host, hosts[0]);
    EXPECT_EQ(workers[1].host, "a:1");
    EXPECT_EQ(workers[2].host, hosts[1]);
    EXPECT_EQ(workers[3].host, hosts[2]);
    for (const NodeInfo& node : workers) EXPECT_EQ(table.membership()->Find(node.id), &node);
  } while (std::next_permutation(coming.begin(), coming.end()));
}

TEST_F(MembershipTableTest, OfManyWhoAreMissingTheFirstAreNamed) {
  EXPECT_EQ(MembershipTable(100, 100, 2, absl::Seconds(5)).Missing(),
            "worker rank 0, worker rank 1, worker rank 2, worker rank 3, worker rank 4, "
            "worker rank 5, worker rank 6, worker rank 7 and 94 more (0 of 102 have joined)");
}

TEST_F(MembershipTableTest, EverybodyHasLeftOnceEachOfThemHas) {
  Fill();
  for (const NodeId node : {1, 1, 2}) table_.MarkLeft(node);
  EXPECT_FALSE(table_.all_left());
  table_.Heard(1, At(1));  // of one who has left
  table_.MarkLeft(3);
  EXPECT_TRUE(table_.all_left());
  EXPECT_EQ(table_.NextExpiry(), absl::InfiniteFuture());
}

TEST_F(MembershipTableTest, RefusesARankThatIsTakenOrThatTheJobLacks) {
  ASSERT_TRUE(Add(Role::kWorker, 1, "first:7").ok());
  const auto taken = Add(Role::kWorker, 1, "second:8");
  EXPECT_EQ(taken.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("node 1 (first:7)"));
  for (const Rank rank : {2, -2, 2147483647, -2147483647}) {
    EXPECT_EQ(Add(Role::kWorker, rank).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Add(Role::kScheduler, 0).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(Add(Role::kWorker, -1).ok());
  EXPECT_EQ(Add(Role::kWorker, -1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MembershipTableTest, ANodeThatWentAwayFreesItsRankButNotItsId) {
  const NodeId first = *Add(Role::kWorker, 0);
  table_.Remove(first);
  const NodeId second = *Add(Role::kWorker, 0);
  EXPECT_NE(first, second);
}

TEST_F(MembershipTableTest, ALeaseEndsUnlessTheNodeIsHeard) {
  Fill();
  EXPECT_EQ(table_.NextExpiry(), At(5));
  table_.Heard(1, At(4));
  table_.Heard(3, At(4));
  EXPECT_EQ(table_.Expired(At(4.9)), nullptr);
  ASSERT_NE(table_.Expired(At(5)), nullptr);
  EXPECT_EQ(table_.Expired(At(5))->info.id, 2u);
  table_.MarkLeft(2);
  EXPECT_EQ(table_.Expired(At(5)), nullptr);
  EXPECT_EQ(table_.NextExpiry(), At(9));
}

TEST_F(MembershipTableTest, LeasesCanBeLengthened) {
  table_.LengthenLeases(absl::Seconds(7));  // before there are any
  Fill();
  table_.Heard(1, At(4));
  table_.MarkLeft(3);
  table_.LengthenLeases(absl::Seconds(7));
  EXPECT_EQ(table_.Expired(At(11.9)), nullptr);
  ASSERT_NE(table_.Expired(At(12)), nullptr);
  EXPECT_EQ(table_.Expired(At(12))->info.id, 2u);
  table_.Heard(2, At(12));
  EXPECT_EQ(table_.Expired(At(15.9)), nullptr);
  EXPECT_NE(table_.Expired(At(16)), nullptr);
}

TEST_F(MembershipTableTest, AShortenedLeaseComesBackWhenTheNodeIsHeard) {
  Fill();
  table_.ShortenLease(2, At(2));
  ASSERT_NE(table_.Expired(At(2)), nullptr);
  table_.Heard(2, At(1.5));
  EXPECT_EQ(table_.Expired(At(2)), nullptr);
  table_.ShortenLease(2, At(60));
  EXPECT_NE(table_.Expired(At(6.5)), nullptr);
}

}  // namespace
}  // namespace bdn
