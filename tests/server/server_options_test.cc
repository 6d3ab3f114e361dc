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
  const auto options = ReadFlags({"--scheduler=10.0.0.1:7000",
                                  "--listen=tcp://0.0.0.0:0",
                                  "--advertise=tcp://10.0.0.2:7100",
                                  "--rank=3",
                                  "--shards=5",
                                  "--link=1Gbit",
                                  "--health-listen=",
                                  "--metrics-listen=127.0.0.1:7090",
                                  "--max-bytes=3GiB",
                                  "--metrics-file=counted.json",
                                  "--job-id=gpt",
                                  "--token=secret",
                                  "--insecure",
                                  "--join-timeout=7s",
                                  "--log-level=error",
                                  "--data-security=authenticated",
                                  "--io-threads=3",
                                  "--connection-timeout=20s",
                                  "--max-bytes-queued=3GiB",
                                  "--max-frame-bytes=5MiB",
                                  "--max-frames-queued=77"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->scheduler, "10.0.0.1:7000");
  EXPECT_EQ(options->server.listen, "tcp://0.0.0.0:0");
  EXPECT_EQ(options->server.advertise, "tcp://10.0.0.2:7100");
  EXPECT_EQ(options->server.join.wanted_rank, 3);
  EXPECT_EQ(options->server.num_shards, 5);
  EXPECT_EQ(options->transport.link_bytes_per_second, 1.25e8);
  EXPECT_EQ(options->transport.security, LinkSecurity::kAuthenticated);
  EXPECT_EQ(options->transport.io_threads, 3);
  EXPECT_EQ(options->transport.connection_timeout, absl::Seconds(20));
  EXPECT_EQ(options->transport.max_bytes_queued, uint64_t{3} << 30);
  EXPECT_EQ(options->server.max_bytes_waiting, uint64_t{3} << 30);
  EXPECT_EQ(options->transport.max_frames_queued, 77);
  EXPECT_EQ(options->transport.max_frame_bytes, uint64_t{5} << 20);
  EXPECT_EQ(options->server.max_frame_bytes, uint64_t{5} << 20);
  EXPECT_EQ(options->health_listen, "");
  EXPECT_EQ(options->metrics_listen, "127.0.0.1:7090");
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

TEST(ServerOptionsTest, IsSecuredByItsAddressUnlessAnotherIsAdvertised) {
  const auto security = [](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--scheduler=127.0.0.1:7000", "--token=t", "--insecure"};
    flags.insert(flags.end(), more.begin(), more.end());
    return ReadFlags(flags)->transport.security;
  };
  EXPECT_EQ(security({}), std::nullopt);  // the transport chooses
  EXPECT_EQ(security({"--data-security=open"}), LinkSecurity::kOpen);
  EXPECT_EQ(security({"--data-security=encrypted"}), LinkSecurity::kEncrypted);
  EXPECT_EQ(security({"--advertise=tcp://10.0.0.2:7"}), LinkSecurity::kEncrypted);
  EXPECT_EQ(security({"--advertise=tcp://10.0.0.2:7", "--data-security=authenticated"}),
            LinkSecurity::kAuthenticated);
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
  for (const char* wrong :
       {"data-security=yes", "io-threads=1000", "connection-timeout=5ms", "max-bytes-queued=much",
        "max-frame-bytes=1KiB", "max-frames-queued=0", "max-frame-bytes=2GiB"}) {
    const std::string flag = std::string("--") + wrong;
    EXPECT_THAT(std::string(ReadFlags({"--scheduler=127.0.0.1:1", flag}).status().message()),
                HasSubstr(flag.substr(2, flag.find('=') - 2)));
  }
}

TEST(ServerOptionsTest, RefusesLibfabricsSharedMemoryAndSaysWhatToTake) {
  for (const char* transport : {"auto", "rdma", "network"}) {
    const absl::Status refused = ReadFlags({"--scheduler=127.0.0.1:1", "--fabric-provider=shm",
                                            std::string("--transport=") + transport})
                                     .status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("say transport=shm, or leave transport=auto"));
  }
}

}  // namespace
}  // namespace bdn
