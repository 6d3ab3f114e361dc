#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/escaped_text.h"
#include "common/base/log_context.h"

namespace bdn {
namespace {

using Json = nlohmann::json;

// Returns the text as a JSON reader has it, which throws where it is no JSON or no UTF-8.
std::string ReadBack(std::string_view text) {
  std::string json;
  AppendJsonText(text, &json);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  return Json::parse(json).get<std::string>();
}

Json LineOf(std::string_view message) {
  return Json::parse(JsonLogLine(absl::UnixEpoch() + absl::Milliseconds(1500), LogLevel::kWarning,
                                 "server", message));
}

TEST(JsonText, KeepsTextAsItIs) {
  for (const char* text : {"", "plain", "\"quoted\\\"", "two\nlines\r\t\x01\x7f", "\xc3\xa4",
                           "\xe2\x82\xac", "\xf0\x9f\x8e\xb5", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(ReadBack(text), text);
  }
  EXPECT_EQ(ReadBack(std::string_view("a\0b", 3)), std::string("a\0b", 3));
}

TEST(JsonText, ReplacesWhatIsNoCharacter) {
  const std::string none = "\xef\xbf\xbd";
  EXPECT_EQ(ReadBack("a\xff\x62"), "a" + none + "b");
  EXPECT_EQ(ReadBack("\xe2\x82"), none + none) << "cut short";
  EXPECT_EQ(ReadBack("\xc0\x80"), none + none) << "longer than it need be";
  EXPECT_EQ(ReadBack("\xe0\x80\x80"), none + none + none);
  EXPECT_EQ(ReadBack("\xed\xa0\x80"), none + none + none) << "half of a pair of UTF-16";
  EXPECT_EQ(ReadBack("\xf4\x90\x80\x80"), none + none + none + none) << "past the last";
}

TEST(JsonText, IsJsonForEveryPairOfBytes) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char pair[] = {static_cast<char>(first), static_cast<char>(second)};
      const std::string read = ReadBack({pair, 2});
      if (first < 0x80 && second < 0x80) {
        ASSERT_EQ(read, std::string(pair, 2));
      }
    }
  }
}

TEST(JsonLog, SaysWhatIsKnownAndNoMore) {
  SetLogPlace({});
  EXPECT_EQ(LineOf("hello \"you\""), Json({{"time", "1970-01-01T00:00:01.500Z"},
                                           {"level", "warning"},
                                           {"role", "server"},
                                           {"message", "hello \"you\""}}));
  SetLogPlace({.role = "worker", .job = "gpt-7", .node = 5, .rank = 0, .epoch = 1});
  SetLogStep(12);
  SetLogEpoch(2);
  EXPECT_EQ(LineOf("x"), Json({{"time", "1970-01-01T00:00:01.500Z"},
                               {"level", "warning"},
                               {"role", "worker"},
                               {"message", "x"},
                               {"job", "gpt-7"},
                               {"node", 5},
                               {"rank", 0},
                               {"epoch", 2},
                               {"step", 12}}));
  SetLogPlace({.job = "next"});
  EXPECT_FALSE(LineOf("x").contains("step")) << "of the job before";
}

TEST(JsonLog, LinesStayWholeWhileThePlaceChanges) {
  SetLogPlace({.job = "j", .node = 1});
  std::atomic<bool> over{false};
  std::thread changes([&] {
    for (uint32_t i = 1; !over; ++i) {
      SetLogPlace({.job = std::string(i % 40 + 1, 'j'), .node = i % 40 + 1});
      SetLogStep(i);
    }
  });
  for (int i = 0; i < 2000; ++i) {
    const Json line = LineOf("x");
    EXPECT_EQ(line.value("job", "").size(), line.value("node", size_t{0}));
    EXPECT_TRUE(line.contains("job"));
  }
  over = true;
  changes.join();
  SetLogPlace({});
}

TEST(JsonLog, GoesToStandardErrorLineByLine) {
  testing::internal::CaptureStderr();
  InitLog(LogLevel::kInfo, "scheduler");
  SetLogFormat(LogFormat::kJson);
  LogInfo("%s", "two\nlines \xff");
  LogDebug("%s", "not this");
  SetLogFormat(LogFormat::kText);
  LogInfo("%s", "as text");
  const std::string said = testing::internal::GetCapturedStderr();
  const size_t end = said.find('\n');
  const Json line = Json::parse(said.substr(0, end));
  EXPECT_EQ(line["message"], "two\nlines \xef\xbf\xbd");
  EXPECT_EQ(line["role"], "scheduler");
  EXPECT_EQ(said.find("not this"), std::string::npos);
  EXPECT_NE(said.find("scheduler: as text", end), std::string::npos);
}

TEST(LogFormat, IsReadAndNamed) {
  LogFormat format = LogFormat::kText;
  EXPECT_TRUE(ParseLogFormat("json", &format).ok());
  EXPECT_EQ(format, LogFormat::kJson);
  EXPECT_TRUE(ParseLogFormat("text", &format).ok());
  EXPECT_EQ(format, LogFormat::kText);
  EXPECT_NE(ParseLogFormat("xml", &format).message().find("xml"), std::string::npos);
}

}  // namespace
}  // namespace bdn
