#include "cli/echo_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace bdn::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string Log(const std::string& text) { return "2026-11-25 13:25:23.976 " + text; }

class EchoFilterTest : public ::testing::Test {
 protected:
  void Print(size_t process, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      for (const std::string& passed : filter_.Pass(process, line)) shown_.push_back(passed);
    }
  }
  void PrintTraceback(size_t process, const std::string& exception) {
    Print(process, {"Traceback (most recent call last):", "  File \"a.py\", line 1", exception});
  }

  EchoFilter filter_;
  std::vector<std::string> shown_;
};

TEST_F(EchoFilterTest, PassesATracebackOfTheProgram) {
  Print(0, {"before"});
  PrintTraceback(0, "ValueError: odd");
  Print(0, {"after"});
  EXPECT_THAT(shown_, ElementsAre("before", "Traceback (most recent call last):",
                                  "  File \"a.py\", line 1", "ValueError: odd", "after"));
}

TEST_F(EchoFilterTest, LeavesOutATracebackOfAnothersFailure) {
  PrintTraceback(0, "bandoneon.errors.JobFailed: worker 1 left with an error: ValueError: odd");
  Print(0, {"after"});
  EXPECT_THAT(shown_, ElementsAre("after"));
}

TEST_F(EchoFilterTest, LeavesOutInterruptionsThatTheUserCaused) {
  PrintTraceback(0, "KeyboardInterrupt");
  EXPECT_EQ(shown_.size(), 3u) << "it interrupted itself";
  filter_.Interrupt();
  PrintTraceback(1, "KeyboardInterrupt");
  Print(2, {Log("E scheduler: the job failed: worker 1 left with an error: KeyboardInterrupt"),
            Log("I scheduler: ends")});
  EXPECT_EQ(shown_.size(), 3u);
}

TEST_F(EchoFilterTest, SaysAnErrorOfSeveralLogsOnce) {
  const std::string why = "worker 1 left with an error: ValueError: odd";
  Print(0, {Log("E scheduler: the job failed: " + why)});
  Print(1, {Log("E server: " + why)});
  Print(2, {Log("E host: ValueError: odd"), Log("E server: another")});
  EXPECT_THAT(shown_,
              ElementsAre(Log("E scheduler: the job failed: " + why), Log("E server: another")));
}

TEST_F(EchoFilterTest, PassesWhatOneProcessSaysTwice) {
  Print(0, {Log("E server: a disk is full"), Log("E server: a disk is full")});
  EXPECT_EQ(shown_.size(), 2u);
}

TEST_F(EchoFilterTest, HandsOverATracebackThatIsNotCompleteAtTheEnd) {
  Print(0, {"Traceback (most recent call last):", "  File \"a.py\", line 1"});
  EXPECT_THAT(shown_, IsEmpty());
  EXPECT_TRUE(filter_.Holds(0));
  EXPECT_EQ(filter_.Flush(0).size(), 2u);
  EXPECT_FALSE(filter_.Holds(0));
}

}  // namespace
}  // namespace bdn::cli
