#include "server/server_options.h"

#include "common/cluster/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<ServerOptions> ReadFlags(const std::vector<std::string>& flags) {
  const auto config = Config::Load(ServerSettings(), flags, {});
  return config.ok() ? ReadServerOptions(*config) : config.status();
}

TEST(ServerOptionsTest, ReadsEverySetting) {
  const auto options = ReadFlags({"--scheduler=10.0.0.1:7000", "--listen=tcp://0.0.0.0:0",
                                  "--advertise=tcp://10.0.0.2:7100", "--rank=3", "--shards=5",
                                  "--link=1Gbit", "--health-listen=", "--max-bytes=3GiB",
                                  "--metrics-file=counted.json", "--job-id=gpt", "--token=secret",
                                  "--insecure", "--join-timeout=7s", "--log-level=error"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->scheduler, "10.0.0.1:7000");
  EXPECT_EQ(options->server.listen, "tcp://0.0.0.0:0");
  EXPECT_EQ(options->server.advertise, "tcp://10.0.0.2:7100");
  EXPECT_EQ(options->server.join.wanted_rank, 3);
  EXPECT_EQ(options->server.num_shards, 5);
  EXPECT_EQ(options->transport.link_bytes_per_second, 1.25e8);
  EXPECT_EQ(options->health_listen, "");
  EXPECT_EQ(options->server.max_bytes, uint64_t{3} << 30);
  EXPECT_EQ(options->metrics_file, "counted.json");
  EXPECT_EQ(options->server.join.job_id, "gpt");
  EXPECT_TRUE(options->server.credentials.Admits("secret"));
  EXPECT_EQ(options->server.join_timeout, absl::Seconds(7));
  EXPECT_EQ(options->log_level, LogLevel::kError);
}

TEST(ServerOptionsTest, ChoosesOneToEightShardsByTheMachine) {
  const auto options = ReadFlags({"--scheduler=127.0.0.1:7000"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_GE(options->server.num_shards, 1);
  EXPECT_LE(options->server.num_shards, 8);
}

TEST(ServerOptionsTest, AdvertisesWhatWorkersCanConnectTo) {
  const auto refused = [](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--scheduler=127.0.0.1:7000", "--token=t", "--insecure"};
    flags.insert(flags.end(), more.begin(), more.end());
    return std::string(ReadFlags(flags).status().message());
  };
  EXPECT_THAT(refused({"--listen=tcp://0.0.0.0:0"}),
              AllOf(HasSubstr("tcp://0.0.0.0:0"), HasSubstr("--advertise")));
  EXPECT_THAT(refused({"--listen=tcp://*:7"}), HasSubstr("--advertise"));
  EXPECT_THAT(refused({"--listen=tcp://0.0.0.0:7", "--advertise=tcp://[::]:7"}),
              HasSubstr("advertise is tcp://[::]:7"));
  EXPECT_EQ(refused({"--listen=tcp://0.0.0.0:7", "--advertise=tcp://10.0.0.2:7"}), "");
}

TEST(ServerOptionsTest, WhatOtherHostsReachNeedsASecret) {
  const auto refused = [](const std::vector<std::string>& flags) {
    return std::string(ReadFlags(flags).status().message());
  };
  EXPECT_THAT(refused({"--scheduler=127.0.0.1:7000", "--listen=tcp://10.0.0.2:7100"}),
              HasSubstr("listen is tcp://10.0.0.2:7100"));
  EXPECT_THAT(refused({"--scheduler=10.0.0.1:7000", "--token=t"}),
              HasSubstr("scheduler is 10.0.0.1:7000"));
}

TEST(ServerOptionsTest, MayHoldWhatTheMachineHasUnlessToldOtherwise) {
  const auto options = ReadFlags({"--scheduler=127.0.0.1:7000"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_GT(options->server.max_bytes, uint64_t{1} << 28);
  EXPECT_LT(options->server.max_bytes, UINT64_MAX);
}

TEST(ServerOptionsTest, NamesTheSettingThatIsMissingOrWrong) {
  EXPECT_THAT(std::string(ReadFlags({}).status().message()), HasSubstr("setting scheduler"));
  EXPECT_THAT(
      std::string(ReadFlags({"--scheduler=127.0.0.1:1", "--shards=2000"}).status().message()),
      HasSubstr("shards"));
}

}  // namespace
}  // namespace bdn
