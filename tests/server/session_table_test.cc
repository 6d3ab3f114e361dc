#include "server/session_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;

Hello HelloOf(Rank rank, uint32_t number = 1) {
  return {.job_id = "job", .node = WorkerNode(rank), .connection_number = number, .token = "key"};
}

class SessionTableTest : public ::testing::Test {
 protected:
  SessionTableTest() { table_.SetMembership(MakeMembership(2)); }
  SessionTable table_{"job", Credentials("key")};
};

TEST_F(SessionTableTest, KnowsNobodyBeforeHello) {
  EXPECT_EQ(table_.NodeOf(1).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(table_.ConnectionOf(WorkerNode(0)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionTableTest, SendsRepliesToTheLatestConnection) {
  ASSERT_TRUE(table_.OnHello(1, HelloOf(0, 1)).ok());
  ASSERT_TRUE(table_.OnHello(2, HelloOf(0, 2)).ok());
  ASSERT_TRUE(table_.OnHello(1, HelloOf(0, 1)).ok());  // a late repeat
  EXPECT_EQ(*table_.ConnectionOf(WorkerNode(0)), 2u);
  EXPECT_EQ(*table_.NodeOf(1), WorkerNode(0));
}

TEST_F(SessionTableTest, RefusesStrangers) {
  Hello other_job = HelloOf(0);
  other_job.job_id = "other";
  EXPECT_THAT(std::string(table_.OnHello(1, other_job).message()),
              HasSubstr("of job 'job', and node 1 of job 'other' called"));
  Hello wrong_token = HelloOf(0);
  wrong_token.token = "guess";
  EXPECT_EQ(table_.OnHello(1, wrong_token).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(table_.OnHello(1, HelloOf(9)).code(), absl::StatusCode::kPermissionDenied);
  Hello server = HelloOf(0);
  server.node = kServerNode;
  EXPECT_EQ(table_.OnHello(1, server).code(), absl::StatusCode::kPermissionDenied);
  ASSERT_TRUE(table_.OnHello(1, HelloOf(0)).ok());
  EXPECT_EQ(table_.OnHello(1, HelloOf(1)).code(), absl::StatusCode::kPermissionDenied);
}

TEST(SessionTable, AsksForPatienceBeforeItHasAMembership) {
  SessionTable table("job", Credentials());
  EXPECT_EQ(table.OnHello(1, {.job_id = "job", .node = 1}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace bdn::testing
