#include "common/cluster/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bdn {
namespace {

using ::testing::HasSubstr;

TEST(Settings, EveryDefaultReads) {
  const auto scheduler = Config::Load(SchedulerSettings(), {}, {});
  ASSERT_TRUE(scheduler.ok());
  EXPECT_EQ(*scheduler->Bytes("partition-bytes"), uint64_t{4} << 20);
  EXPECT_EQ(*scheduler->Bytes("fusion-bytes"), uint64_t{1} << 20);
  EXPECT_EQ(*scheduler->Bytes("min-compress-bytes"), uint64_t{64} << 10);
  EXPECT_EQ(*scheduler->Duration("heartbeat-interval"), absl::Seconds(1));
  EXPECT_EQ(*scheduler->Duration("lease-timeout"), absl::Seconds(5));
  EXPECT_TRUE(*scheduler->Bool("exit-when-done"));
  const auto server = Config::Load(ServerSettings(), {}, {});
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(*server->Int("rank", -1, 10), -1);
  EXPECT_EQ(*server->Rate("link"), 0);
  const auto worker = Config::Load(WorkerSettings(), {}, {});
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ(*worker->Duration("wait-timeout"), absl::Seconds(1800));
  EXPECT_EQ(*worker->Bytes("max-bytes-in-flight"), uint64_t{16} << 20);
}

TEST(Settings, OneEnvironmentServesAllProcesses) {
  const Environment environment = {
      {"BANDONEON_WORKERS", "3"}, {"BANDONEON_SHARDS", "2"}, {"BANDONEON_PROBE_INTERVAL", "2s"}};
  for (const auto settings : {SchedulerSettings(), ServerSettings(), WorkerSettings()}) {
    EXPECT_TRUE(Config::Load(settings, {}, environment, AllSettings()).ok());
  }
}

TEST(Settings, AMisspeltVariableIsNamed) {
  const auto config =
      Config::Load(ServerSettings(), {}, {{"BANDONEON_WORKRES", "3"}}, AllSettings());
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("BANDONEON_WORKERS"));
}

}  // namespace
}  // namespace bdn
