#include "common/telemetry/history_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace bdn {
namespace {

using testing::HasSubstr;

class HistoryFileTest : public testing::Test {
 protected:
  HistoryFileTest() {
    std::string folder = testing::TempDir() + "history-XXXXXX";
    folder_ = mkdtemp(folder.data());
  }
  ~HistoryFileTest() override { std::filesystem::remove_all(folder_); }

  std::vector<nlohmann::json> Read() const {
    std::ifstream file(folder_ / ("job.server-3-" + std::to_string(getpid())));
    std::vector<nlohmann::json> events;
    for (std::string line; std::getline(file, line);) events.push_back(nlohmann::json::parse(line));
    return events;
  }

  std::filesystem::path folder_;
};

TEST_F(HistoryFileTest, IsNoneWithoutAPath) {
  const auto history = HistoryFile::Open("", "server-3");

  ASSERT_TRUE(history.ok());
  EXPECT_EQ(*history, nullptr);
}

TEST_F(HistoryFileTest, NamesAFileThatCannotBeWritten) {
  const auto history = HistoryFile::Open(folder_ / "none" / "job", "server-3");

  EXPECT_THAT(history.status().message(), HasSubstr("history-file"));
  EXPECT_THAT(history.status().message(), HasSubstr("none/job.server-3-"));
}

TEST_F(HistoryFileTest, HasEachEventOnceItIsWritten) {
  const auto history = HistoryFile::Open(folder_ / "job", "server-3");
  ASSERT_TRUE(history.ok());

  (*history)->Write("begin", HistoryText("job", "a \"name\"\n") + ",\"rank\":3");
  (*history)->Write("left", "");

  const std::vector<nlohmann::json> events = Read();  // while it is open
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["event"], "begin");
  EXPECT_EQ(events[0]["job"], "a \"name\"\n");
  EXPECT_EQ(events[0]["rank"], 3);
  EXPECT_EQ(events[1]["event"], "left");
  EXPECT_LE(events[0]["at"].get<double>(), events[1]["at"].get<double>());
}

TEST_F(HistoryFileTest, KeepsLinesOfSeveralThreadsWhole) {
  const auto history = HistoryFile::Open(folder_ / "job", "server-3");
  ASSERT_TRUE(history.ok());
  constexpr int kThreads = 4;
  constexpr int kEvents = 200;

  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kEvents; ++k) {
        (*history)->Write("push", HistoryText("text", std::string(500, 'x')));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(Read().size(), size_t{kThreads} * kEvents);
}

}  // namespace
}  // namespace bdn
