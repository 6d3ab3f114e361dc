#include "common/base/config.h"

#include <stdlib.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<Setting> kSettings = {{"lease-timeout", "15s", "how long a node may be silent"},
                                        {"workers", "2", "how many"},
                                        {"link", "", "rate of the emulated link"},
                                        {"partition-bytes", "4MiB", "most bytes a partition"},
                                        {"check-config", "false", "only check"}};
const std::vector<Setting> kElsewhere = {{"shards", "1", "the server's"}};

absl::StatusOr<Config> Load(const std::vector<std::string>& args, const Environment& env = {}) {
  return Config::Load(kSettings, args, env, kElsewhere);
}
std::string LoadError(const std::vector<std::string>& args, const Environment& env = {}) {
  const auto config = Load(args, env);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(Config, FlagsBeatTheEnvironmentWhichBeatsDefaults) {
  const auto config =
      Load({"--workers=8"}, {{"BANDONEON_WORKERS", "4"}, {"BANDONEON_LEASE_TIMEOUT", "500ms"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config->Int("workers", 1, 100), 8);
  EXPECT_EQ(*config->Duration("lease-timeout"), absl::Milliseconds(500));
  EXPECT_EQ(*config->Bytes("partition-bytes"), 4u << 20);
  EXPECT_TRUE(config->IsSet("workers"));
  EXPECT_FALSE(config->IsSet("partition-bytes"));
}

TEST(Config, TakesAllThreeFormsOfAFlag) {
  const auto config = Load({"--workers", "3", "--link=1gbit", "--check-config"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config->Int("workers", 1, 100), 3);
  EXPECT_EQ(*config->Rate("link"), 125e6);
  EXPECT_TRUE(*config->Bool("check-config"));
}

TEST(Config, NamesAnUnknownFlagAndTheNearest) {
  EXPECT_THAT(LoadError({"--lease-timeuot=5s"}),
              AllOf(HasSubstr("--lease-timeuot"), HasSubstr("did you mean --lease-timeout?")));
  EXPECT_THAT(LoadError({"positional"}), HasSubstr("positional"));
}

TEST(Config, NamesAnUnknownVariableAndTheNearest) {
  EXPECT_THAT(LoadError({}, {{"BANDONEON_WORKRES", "4"}}),
              AllOf(HasSubstr("BANDONEON_WORKRES;"), HasSubstr("did you mean BANDONEON_WORKERS?")));
}

TEST(Config, LetsTheEnvironmentHoldSettingsOfOtherProcesses) {
  EXPECT_TRUE(Load({}, {{"BANDONEON_SHARDS", "3"}}).ok());
  EXPECT_THAT(LoadError({"--shards=3"}), HasSubstr("--shards"));
}

TEST(Config, NamesAMalformedValueItsSourceAndTheForm) {
  const auto config = Load({"--workers=two", "--partition-bytes=4MB", "--check-config=perhaps"},
                           {{"BANDONEON_LEASE_TIMEOUT", "soon"}, {"BANDONEON_LINK", "fast"}});
  ASSERT_TRUE(config.ok());
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(config->Int("workers", 1, 9).status()),
              AllOf(HasSubstr("workers is 'two'"), HasSubstr("flag"), HasSubstr("from 1 to 9")));
  EXPECT_THAT(message(config->Duration("lease-timeout").status()),
              AllOf(HasSubstr("lease-timeout is 'soon'"), HasSubstr("environment")));
  EXPECT_THAT(message(config->Bytes("partition-bytes").status()), HasSubstr("'4MB'"));
  EXPECT_THAT(message(config->Rate("link").status()), HasSubstr("200mbit"));
  EXPECT_THAT(message(config->Bool("check-config").status()), HasSubstr("true or false"));
}

TEST(Config, ChecksTheRangeOfANumber) {
  const auto config = Load({"--workers=0"});
  EXPECT_FALSE(config->Int("workers", 1, 9).ok());
  EXPECT_TRUE(config->Int("workers", 0, 9).ok());
}

TEST(Config, RefusesANegativeDuration) {
  EXPECT_FALSE(Load({"--lease-timeout=-5s"})->Duration("lease-timeout").ok());
}

TEST(Config, PrintsEveryValueAndWhereItCameFrom) {
  const std::string text = Load({"--workers=8"})->ToString();
  EXPECT_THAT(
      text, AllOf(HasSubstr("workers = 8 (flag)"), HasSubstr("partition-bytes = 4MiB (default)")));
  EXPECT_THAT(Config::Help(kSettings), AllOf(HasSubstr("--lease-timeout"), HasSubstr("[15s]")));
}

TEST(ParseRate, TakesBitsASecond) {
  EXPECT_EQ(*ParseRate("200mbit"), 25e6);
  EXPECT_EQ(*ParseRate("1.5Gbit"), 187.5e6);
  EXPECT_EQ(*ParseRate("8bit"), 1);
  EXPECT_EQ(*ParseRate(""), 0);
  EXPECT_EQ(*ParseRate("0"), 0);
  for (const char* bad : {"200", "200mb", "mbit", "-1mbit", "1e999mbit"}) {
    EXPECT_FALSE(ParseRate(bad).ok()) << bad;
  }
}

TEST(ParseBytes, TakesBinaryUnits) {
  EXPECT_EQ(*ParseBytes("65536"), 65536u);
  EXPECT_EQ(*ParseBytes("64KiB"), 65536u);
  EXPECT_EQ(*ParseBytes("0.5GiB"), uint64_t{1} << 29);
  for (const char* bad : {"", "KiB", "64kB", "0.3", "-1", "99999999999GiB", "1 2"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
}

TEST(ReadEnvironment, SeesOnlyOurVariables) {
  ASSERT_EQ(setenv("BANDONEON_TEST_VARIABLE", "a=b", 1), 0);
  ASSERT_EQ(setenv("NOT_BANDONEON_VARIABLE", "1", 1), 0);
  const Environment environment = ReadEnvironment();
  EXPECT_EQ(environment.at("BANDONEON_TEST_VARIABLE"), "a=b");
  EXPECT_EQ(environment.count("NOT_BANDONEON_VARIABLE"), 0u);
  EXPECT_EQ(ReadVariable("NOT_BANDONEON_VARIABLE"), "1");
  EXPECT_EQ(ReadVariable("NOT_SET_ANYWHERE"), "");
  unsetenv("BANDONEON_TEST_VARIABLE");
  unsetenv("NOT_BANDONEON_VARIABLE");
}

}  // namespace
}  // namespace bdn
