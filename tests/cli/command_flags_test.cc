#include "cli/command_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace bdn::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Flag kFlags[] = {
    {"workers", 'n', "COUNT", "processes"},
    {"push", 0, "SPEC", "codec"},
    {"set", 0, "NAME=VALUE", "setting"},
    {"json", 0, nullptr, "JSON"},
};
constexpr std::string_view kRepeated[] = {"set"};

absl::StatusOr<CommandFlags> Parse(const std::vector<std::string>& args) {
  return CommandFlags::Parse(kFlags, args, kRepeated);
}

std::string ErrorOf(const std::vector<std::string>& args) {
  const auto parsed = Parse(args);
  return parsed.ok() ? "" : std::string(parsed.status().message());
}

TEST(CommandFlags, TakeValuesInEveryForm) {
  const auto flags = Parse({"-n", "3", "--push=ef(onebit)", "--json"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->Int("workers", 1, 1, 9).value(), 3);
  EXPECT_EQ(flags->Text("push"), "ef(onebit)");
  EXPECT_TRUE(flags->Has("json"));
  EXPECT_FALSE(flags->Has("set"));
}

TEST(CommandFlags, LeaveEverythingBehindTheDashesAlone) {
  const auto flags = Parse({"-n", "2", "--", "python", "--push", "-n", "--"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(flags->command(), ElementsAre("python", "--push", "-n", "--"));
  EXPECT_FALSE(flags->Has("push"));
}

TEST(CommandFlags, KeepEachValueOfARepeatedOption) {
  const auto flags = Parse({"--set", "a=1", "--set=b=2"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_THAT(flags->All("set"), ElementsAre("a=1", "b=2"));
  EXPECT_THAT(flags->All("push"), IsEmpty());
}

TEST(CommandFlags, NameWhatIsWrong) {
  EXPECT_THAT(ErrorOf({"--wrokers", "3"}), HasSubstr("unknown option --wrokers"));
  EXPECT_THAT(ErrorOf({"-x"}), HasSubstr("unknown option -x"));
  EXPECT_THAT(ErrorOf({"--workersx=3"}), HasSubstr("unknown option --workersx"));
  EXPECT_THAT(ErrorOf({"--push"}), HasSubstr("--push lacks its value"));
  EXPECT_THAT(ErrorOf({"--push", "--", "ls"}), HasSubstr("--push lacks its value"));
  EXPECT_THAT(ErrorOf({"--json=yes"}), HasSubstr("--json takes no value"));
  EXPECT_THAT(ErrorOf({"--push", "a", "--push", "b"}), HasSubstr("given twice: a and b"));
  EXPECT_THAT(ErrorOf({"train.py"}), HasSubstr("unexpected argument 'train.py'"));
}

TEST(CommandFlags, SayWhichOptionWasMeant) {
  EXPECT_EQ(ErrorOf({"--wrokers=3"}), "unknown option --wrokers; did you mean '--workers'?");
  EXPECT_EQ(ErrorOf({"--work", "3"}), "unknown option --work; did you mean '--workers'?");
  EXPECT_EQ(ErrorOf({"--hlep"}), "unknown option --hlep; did you mean '--help'?");
  EXPECT_EQ(ErrorOf({"--unheard-of"}), "unknown option --unheard-of");
  EXPECT_EQ(ErrorOf({"-x"}), "unknown option -x");
}

TEST(CommandFlags, RefuseNumbersOutOfRange) {
  for (const char* text : {"0", "10", "two", "3x", ""}) {
    const auto number = Parse({std::string("--workers=") + text})->Int("workers", 1, 1, 9);
    ASSERT_FALSE(number.ok()) << text;
    EXPECT_THAT(std::string(number.status().message()), HasSubstr("--workers"));
  }
  EXPECT_EQ(Parse({})->Int("workers", 5, 1, 9).value(), 5);
}

TEST(CommandFlags, ReadDurations) {
  const auto duration = [](const char* text) {
    return Parse({std::string("--push=") + text})->Duration("push", std::chrono::seconds(9));
  };
  EXPECT_EQ(duration("500ms").value(), std::chrono::milliseconds(500));
  EXPECT_EQ(duration("2m").value(), std::chrono::minutes(2));
  EXPECT_FALSE(duration("-1s").ok());
  EXPECT_FALSE(duration("5").ok());
  EXPECT_FALSE(duration("inf").ok());
}

}  // namespace
}  // namespace bdn::cli
