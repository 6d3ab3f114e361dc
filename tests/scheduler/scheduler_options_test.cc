#include "scheduler/scheduler_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/cluster/settings.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<SchedulerOptions> ReadFlags(const std::vector<std::string>& flags) {
  const auto config = Config::Load(SchedulerSettings(), flags, {});
  return config.ok() ? ReadSchedulerOptions(*config) : config.status();
}

TEST(SchedulerOptions, ReadsEverySetting) {
  const auto options = ReadFlags({"--listen=0.0.0.0:7000",
                                  "--workers=3",
                                  "--servers=2",
                                  "--seed=9",
                                  "--partition-bytes=1MiB",
                                  "--fusion-bytes=64KiB",
                                  "--min-compress-bytes=0",
                                  "--max-job-bytes=2GiB",
                                  "--max-tensors=99",
                                  "--max-name-bytes=100",
                                  "--max-request-bytes=1MiB",
                                  "--max-declaration-bytes=8MiB",
                                  "--heartbeat-interval=500ms",
                                  "--lease-timeout=4s",
                                  "--join-timeout=7s",
                                  "--job-id=gpt",
                                  "--token=secret",
                                  "--insecure",
                                  "--exit-when-done=false",
                                  "--drain-timeout=30s",
                                  "--health-listen=0.0.0.0:7080",
                                  "--metrics-listen=0.0.0.0:7090",
                                  "--http-listen=0.0.0.0:7070",
                                  "--http-port-file=/tmp/http-port",
                                  "--log-level=error"});
  ASSERT_TRUE(options.ok()) << options.status();
  const JobConfig& job = options->job.config;
  EXPECT_EQ(options->listen, "0.0.0.0:7000");
  EXPECT_EQ(job.num_workers, 3);
  EXPECT_EQ(job.num_servers, 2);
  EXPECT_EQ(job.run_seed, 9u);
  EXPECT_EQ(job.partition_bytes, 1u << 20);
  EXPECT_EQ(job.fusion_bytes, 64u << 10);
  EXPECT_EQ(job.min_compress_bytes, 0u);
  EXPECT_EQ(options->job.limits.max_job_bytes, uint64_t{2} << 30);
  EXPECT_EQ(options->job.limits.max_tensors, 99u);
  EXPECT_EQ(options->job.limits.max_name_bytes, 100u);
  EXPECT_EQ(options->job.request_limits.max_request_bytes, 1u << 20);
  EXPECT_EQ(options->job.request_limits.max_declaration_bytes, 8u << 20);
  EXPECT_EQ(job.heartbeat_interval, absl::Milliseconds(500));
  EXPECT_EQ(job.lease_timeout, absl::Seconds(4));
  EXPECT_EQ(options->job.join_timeout, absl::Seconds(7));
  EXPECT_EQ(job.job_id, "gpt");
  EXPECT_EQ(options->job.credentials.token(), "secret");
  EXPECT_FALSE(options->exit_when_done);
  EXPECT_EQ(options->drain_timeout, absl::Seconds(30));
  EXPECT_EQ(options->health_listen, "0.0.0.0:7080");
  EXPECT_EQ(options->metrics_listen, "0.0.0.0:7090");
  EXPECT_EQ(options->http_listen, "0.0.0.0:7070");
  EXPECT_EQ(options->http_port_file, "/tmp/http-port");
  EXPECT_TRUE(options->job.keeps_history);
  EXPECT_EQ(options->log_level, LogLevel::kError);
}

TEST(SchedulerOptions, KeysSurviveWhereAnotherServerMayTakeThem) {
  EXPECT_EQ(ReadFlags({"--servers=2"})->job.config.replay_steps, 32u);
  EXPECT_EQ(ReadFlags({"--servers=1", "--journal=/tmp/j"})->job.config.replay_steps, 32u);
  EXPECT_EQ(ReadFlags({"--servers=1"})->job.config.replay_steps, 0u);
  EXPECT_EQ(ReadFlags({"--servers=2", "--replay-steps=0"})->job.config.replay_steps, 0u);
  EXPECT_THAT(ReadFlags({"--replay-steps=129"}).status().message(), HasSubstr("replay-steps"));
}

TEST(SchedulerOptions, MoreWorkersMayComeWhereThatIsSaid) {
  const auto read = [](const std::vector<std::string>& flags) {
    return ReadFlags(flags)->job.config;
  };
  for (const JobConfig& as_begun :
       {read({"--workers=3"}), read({"--workers=3", "--max-workers=3"})}) {
    EXPECT_EQ(as_begun.num_workers, 3);
    EXPECT_EQ(as_begun.NumFirstWorkers(), 3);
    EXPECT_FALSE(as_begun.MayHaveVacantRanks());
  }
  const JobConfig more = read({"--workers=3", "--max-workers=8"});
  EXPECT_EQ(more.num_workers, 8);
  EXPECT_EQ(more.NumFirstWorkers(), 3);
  EXPECT_EQ(more.min_workers, 3) << "all with which it began";
  EXPECT_EQ(read({"--workers=3", "--max-workers=8", "--min-workers=1"}).min_workers, 1);
  EXPECT_EQ(ReadFlags({"--workers=3", "--max-workers=2"}).status().message(),
            "max-workers is 2: expected 0 (as workers) or at least workers, 3");
}

TEST(SchedulerOptions, APageThatOthersReachNeedsATokenAndInsecure) {
  EXPECT_FALSE(ReadFlags({})->job.keeps_history) << "nobody looks";
  EXPECT_TRUE(ReadFlags({"--http-listen=127.0.0.1:0"}).ok());
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--http-listen=0.0.0.0:7070"},
        std::vector<std::string>{"--http-listen=0.0.0.0:7070", "--token=secret"},
        std::vector<std::string>{"--http-listen=0.0.0.0:7070", "--insecure"}}) {
    EXPECT_THAT(std::string(ReadFlags(flags).status().message()),
                HasSubstr("http-listen is 0.0.0.0:7070, which other hosts reach"));
  }
  EXPECT_TRUE(ReadFlags({"--http-listen=0.0.0.0:7070", "--token=secret", "--insecure"}).ok());
}

TEST(SchedulerOptions, JobsWithoutANameGetDifferentOnes) {
  const auto one = ReadFlags({});
  const auto other = ReadFlags({});
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_FALSE(one->job.config.job_id.empty());
  EXPECT_NE(one->job.config.job_id, other->job.config.job_id);
}

TEST(SchedulerOptions, AWrongOrContradictorySettingIsNamed) {
  const auto expect = [](const std::string& flag, const std::string& named) {
    const auto options = ReadFlags({flag});
    EXPECT_THAT(std::string(options.status().message()), HasSubstr(named)) << flag;
  };
  expect("--workers=none", "workers");
  expect("--servers=0", "servers");
  expect("--listen=7000", "'7000'");
  expect("--listen=host:70000", "'host:70000'");
  expect("--http-listen=7070", "'7070'");
  expect("--partition-bytes=1", "partition-bytes");
  expect("--max-name-bytes=9", "max-name-bytes");
  expect("--max-name-bytes=1MiB", "max-name-bytes");
  expect("--max-request-bytes=1", "max-request-bytes");
  expect("--max-declaration-bytes=1GiB", "max-declaration-bytes");
  expect("--lease-timeout=1s", "heartbeat-interval");
  expect("--join-timeout=soon", "join-timeout");
  expect("--log-level=loud", "loud");
  expect("--exit-when-done=maybe", "exit-when-done");
  expect("--wokers=2", "--workers");
}

}  // namespace
}  // namespace bdn
