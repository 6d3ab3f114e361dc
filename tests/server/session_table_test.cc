#include "server/session_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr Key kKey = Key::Of(1, 0);
constexpr PublicKey kKeys[] = {{{1}}, {{2}}};

Hello HelloOf(Rank rank) { return {.job_id = "job", .node = WorkerNode(rank), .token = "secret"}; }

class SessionTableTest : public ::testing::Test {
 protected:
  SessionTableTest() {
    auto membership = std::make_shared<Membership>(*MakeMembership(2));
    for (size_t rank = 0; rank < 2; ++rank) membership->workers[rank].public_key = kKeys[rank];
    table_.SetMembership(membership);
  }
  absl::Status OnHello(ConnectionId connection, const Hello& hello) {
    return table_.OnHello(connection, hello.node == WorkerNode(1) ? kKeys[1] : kKeys[0], hello);
  }

  SessionTable table_{"job", "secret"};
};

TEST_F(SessionTableTest, KnowsNobodyBeforeHello) {
  EXPECT_EQ(table_.NodeOf(1).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(table_.ConnectionOf(WorkerNode(0), kKey).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionTableTest, SendsRepliesWhereTheNodeWasHeardLast) {
  ASSERT_TRUE(OnHello(1, HelloOf(0)).ok());
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), kKey), 1u);
  ASSERT_TRUE(OnHello(2, HelloOf(0)).ok());
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), kKey), 2u);
  // A stale connection brings what was on its way: the next frame of the live one mends it.
  ASSERT_TRUE(OnHello(1, HelloOf(0)).ok());
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), kKey), 1u);
  table_.OnHeard(2, kKey);
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), kKey), 2u);
  EXPECT_EQ(*table_.NodeOf(1), WorkerNode(0));
}

TEST_F(SessionTableTest, TellsAllConnectionsThatHaveSaidHello) {
  EXPECT_THAT(table_.Connections(), IsEmpty());
  ASSERT_TRUE(OnHello(1, HelloOf(0)).ok());
  ASSERT_TRUE(OnHello(2, HelloOf(1)).ok());
  ASSERT_TRUE(OnHello(3, HelloOf(0)).ok());
  EXPECT_THAT(table_.Connections(),
              UnorderedElementsAre(Pair(WorkerNode(0), UnorderedElementsAre(1u, 3u)),
                                   Pair(WorkerNode(1), UnorderedElementsAre(2u))));
  table_.Forget(1);
  table_.Forget(2);
  EXPECT_THAT(table_.Connections(), ElementsAre(Pair(WorkerNode(0), ElementsAre(3u))));
}

TEST_F(SessionTableTest, SendsAKeysResultWhereTheKeyWasAskedFor) {
  for (const ConnectionId connection : {1, 2, 3}) ASSERT_TRUE(OnHello(connection, HelloOf(0)).ok());
  const auto to = [&](uint32_t tensor) {
    return *table_.ConnectionOf(WorkerNode(0), Key::Of(tensor, 0));
  };
  table_.OnHeard(1, Key::Of(1, 0));
  table_.OnHeard(2, Key::Of(2, 0));
  table_.OnHeard(3, Key::Of(3, 0));
  EXPECT_EQ(to(1), 1u);
  EXPECT_EQ(to(2), 2u);
  EXPECT_EQ(to(3), 3u);
  EXPECT_EQ(to(4), 3u) << "where the node was heard last";
  table_.OnHeard(2, Key::Of(1, 0));
  EXPECT_EQ(to(1), 2u) << "a probe came by another way";
  table_.OnResult(WorkerNode(0), Key::Of(1, 0));
  table_.OnHeard(3, Key::Of(2, 0));
  EXPECT_EQ(to(1), 3u);
  table_.Forget(3);
  EXPECT_EQ(to(2), 2u) << "its connection is gone: another one of the node";
  EXPECT_EQ(to(3), 2u);
  table_.OnResult(WorkerNode(1), Key::Of(1, 0));  // it has no connection
}

TEST_F(SessionTableTest, RemembersABoundedNumberOfKeys) {
  for (const ConnectionId connection : {1, 2}) ASSERT_TRUE(OnHello(connection, HelloOf(0)).ok());
  for (uint32_t tensor = 1; tensor <= 100'000; ++tensor) table_.OnHeard(1, Key::Of(tensor, 0));
  table_.OnHeard(2, Key::Of(7, 0));
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), Key::Of(1, 0)), 1u);
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), Key::Of(7, 0)), 2u);
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), Key::Of(99'999, 0)), 2u) << "heard last";
}

TEST_F(SessionTableTest, ForgetsConnectionsThatAreGone) {
  for (ConnectionId connection = 1; connection <= 1000; ++connection) {
    ASSERT_TRUE(OnHello(connection, HelloOf(0)).ok());
    if (connection > 2) table_.Forget(connection - 1);
  }
  EXPECT_EQ(table_.size(), 2u);
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), kKey), 1000u);
  table_.Forget(1000);
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0), kKey), 1u);
  table_.Forget(1);
  table_.Forget(1);
  table_.Forget(77);
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_EQ(table_.ConnectionOf(WorkerNode(0), kKey).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.NodeOf(1).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(SessionTableTest, RefusesWhoSpeaksForAnotherRank) {
  // Worker 0's connection, and a hello as worker 1, whose secret all know.
  const absl::Status refused = table_.OnHello(1, kKeys[0], HelloOf(1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_TRUE(table_.OnHello(1, kKeys[1], HelloOf(1)).ok());
  // A listener that asks for no CURVE key gives none to compare.
  EXPECT_TRUE(table_.OnHello(2, PublicKey(), HelloOf(1)).ok());
}

TEST_F(SessionTableTest, RefusesStrangersAndTellsThemNothing) {
  Hello other_job = HelloOf(0);
  other_job.job_id = "other";
  const std::string refused(OnHello(1, other_job).message());
  EXPECT_THAT(refused, HasSubstr("'other'"));
  EXPECT_THAT(refused, Not(HasSubstr("'job'")));
  Hello wrong_secret = HelloOf(0);
  wrong_secret.token = "guess!";
  EXPECT_EQ(OnHello(1, wrong_secret).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(OnHello(1, wrong_secret).message()), Not(HasSubstr("secret'")));
  EXPECT_EQ(OnHello(1, HelloOf(9)).code(), absl::StatusCode::kPermissionDenied);
  Hello server = HelloOf(0);
  server.node = kServerNode;
  EXPECT_EQ(OnHello(1, server).code(), absl::StatusCode::kPermissionDenied);
  ASSERT_TRUE(OnHello(1, HelloOf(0)).ok());
  EXPECT_EQ(OnHello(1, HelloOf(1)).code(), absl::StatusCode::kPermissionDenied);
}

TEST(SessionTable, AsksForPatienceBeforeItHasAMembership) {
  SessionTable table("job", "");
  EXPECT_EQ(table.OnHello(1, {}, {.job_id = "job", .node = 1}).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bdn::testing
