#include "cli/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

namespace bdn::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = ProcessGroup::Event::Kind;

class ProcessGroupTest : public ::testing::Test {
 protected:
  // Runs a line of shell as a child.
  size_t Shell(const std::string& line, bool wants_input = false) {
    const auto started = group_.Start({"shell", {"/bin/sh", "-c", line}, {}, wants_input});
    EXPECT_TRUE(started.ok()) << started.status();
    return *started;
  }
  // The next event but lines; a test that hangs here fails by ctest's time limit.
  ProcessGroup::Event Next(std::optional<Clock::time_point> deadline = std::nullopt) {
    while (true) {
      const ProcessGroup::Event event = group_.Next(deadline);
      if (event.kind != Kind::kLines) return event;
    }
  }
  // Waits until the child has printed that it is ready.
  void AwaitLines(size_t count) {
    while (lines_.size() < count) group_.Next(std::nullopt);
  }

  std::vector<std::string> lines_;
  ProcessGroup group_{[this](size_t, ProcessGroup::Stream, std::string_view line,
                             ProcessGroup::End) { lines_.emplace_back(line); }};
};

// With patience for lines that do not end.
class ProgressTest : public ::testing::Test {
 protected:
  void Start(const std::string& line) {
    ASSERT_TRUE(group_.Start({"shell", {"/bin/sh", "-c", line}, {}, true}).ok());
  }
  void AwaitPieces(size_t count) {
    while (pieces_.size() < count) group_.Next(std::nullopt);
  }

  std::vector<std::string> pieces_;  // with "$" for a newline, "<" for a return, "..." for no end
  ProcessGroup group_{
      [this](size_t, ProcessGroup::Stream, std::string_view text, ProcessGroup::End end) {
        constexpr const char* kEnds[] = {"$", "<", "..."};
        pieces_.push_back(std::string(text) + kEnds[static_cast<size_t>(end)]);
      },
      std::chrono::milliseconds(200)};
};

TEST_F(ProgressTest, HandsOverABarThatIsDrawnAnew) {
  Start("printf ' 10%%\r 20%%\r'; read go; printf '100%%\r\nend\n'");
  AwaitPieces(2);
  EXPECT_THAT(pieces_, ElementsAre(" 10%<", " 20%<"));
  group_.Write(0, "go\n");
  AwaitPieces(4);
  EXPECT_THAT(pieces_, ElementsAre(" 10%<", " 20%<", "100%$", "end$"));
}

TEST_F(ProgressTest, HandsOverALineThatDoesNotEndAndSleepsThen) {
  Start("printf 'done\nname? '; read name; echo $name");
  AwaitPieces(2);
  EXPECT_THAT(pieces_, ElementsAre("done$", "name? ..."));
  // Nothing is left to hand over: the next wait ends by its deadline alone, without an event in
  // between.
  const auto deadline = Clock::now() + std::chrono::milliseconds(300);
  EXPECT_EQ(group_.Next(deadline).kind, Kind::kTimeout);
  EXPECT_GE(Clock::now(), deadline);
  group_.Write(0, "me\n");
  AwaitPieces(3);
  EXPECT_EQ(pieces_.back(), "me$");
}

TEST_F(ProgressTest, EndsALineThatCameInPieces) {
  Start("printf one; printf ' two'; printf ' three\n'");
  while (group_.Next(std::nullopt).kind != Kind::kEnded) {
  }
  std::string all;
  for (const std::string& piece : pieces_) all += piece;
  // In one piece, unless the machine was held up between two of them.
  if (pieces_.size() == 1) {
    EXPECT_EQ(all, "one two three$");
  }
  EXPECT_EQ(all.back(), '$');
}

TEST_F(ProcessGroupTest, TellsHowAChildEnded) {
  const size_t child = Shell("exit 7");
  const ProcessGroup::Event event = Next();
  EXPECT_EQ(event.kind, Kind::kEnded);
  EXPECT_EQ(event.process, child);
  EXPECT_EQ(event.code, 7);
  EXPECT_EQ(group_.num_alive(), 0u);
}

TEST_F(ProcessGroupTest, TellsWhichSignalEndedAChild) {
  Shell("kill -9 $$");
  EXPECT_EQ(Next().code, 128 + SIGKILL);
  EXPECT_THAT(DescribeCode(128 + SIGKILL), HasSubstr("signal 9"));
}

TEST_F(ProcessGroupTest, HandsOverLinesBeforeTheEnd) {
  Shell("echo one; printf 'two\nthree'; echo four >&2");
  EXPECT_EQ(Next().kind, Kind::kEnded);
  group_.KillAll();  // hands over the line without an end
  EXPECT_THAT(lines_, ::testing::UnorderedElementsAre("one", "two", "three", "four"));
}

TEST_F(ProcessGroupTest, CutsALineWithoutEnd) {
  Shell("head -c 1000000 /dev/zero | tr '\\0' x");
  EXPECT_EQ(Next().kind, Kind::kEnded);
  group_.KillAll();
  size_t size = 0;
  for (const std::string& line : lines_) size += line.size();
  EXPECT_EQ(size, 1000000u);
  EXPECT_GT(lines_.size(), 1u);
}

TEST_F(ProcessGroupTest, NamesAProgramThatIsNotThere) {
  const auto started = group_.Start({"worker 3", {"no-such-program"}, {}});
  EXPECT_EQ(started.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("worker 3"));
  EXPECT_THAT(std::string(started.status().message()), HasSubstr("no-such-program"));
  EXPECT_EQ(group_.size(), 0u);
}

TEST_F(ProcessGroupTest, StartsAChildAgainInThePlaceOfOneThatEnded) {
  const size_t other = Shell("read line", true);
  // Its own child holds the pipe open, and is no longer listened to.
  const size_t child = Shell("setsid sleep 1000 & printf rest; kill -9 $$");
  EXPECT_EQ(Next().code, 128 + SIGKILL);
  const pid_t former = group_.pid(child);
  ASSERT_TRUE(group_.StartAgain(child, {"again", {"/bin/sh", "-c", "echo new; exit 3"}, {}}).ok());
  EXPECT_NE(group_.pid(child), former);
  EXPECT_EQ(group_.name(child), "again");
  EXPECT_EQ(group_.size(), 2u);
  EXPECT_EQ(group_.num_alive(), 2u);
  const ProcessGroup::Event event = Next();
  EXPECT_EQ(event.process, child);
  EXPECT_EQ(event.code, 3);
  EXPECT_THAT(lines_, ElementsAre("rest", "new"));
  EXPECT_TRUE(group_.alive(other));
}

TEST_F(ProcessGroupTest, KillsWhatTheFormerLeftInItsGroup) {
  const size_t child = Shell("sleep 1000 & echo $!; kill -9 $$");
  EXPECT_EQ(Next().code, 128 + SIGKILL);
  const pid_t left = std::stoi(lines_.at(0));
  EXPECT_EQ(kill(left, 0), 0);
  ASSERT_TRUE(group_.StartAgain(child, {"again", {"/bin/sh", "-c", "sleep 1000"}, {}}).ok());
  // It is there until it is reaped.
  while (kill(left, 0) == 0) Next(Clock::now() + std::chrono::milliseconds(1));
  EXPECT_TRUE(group_.alive(child));
}

TEST_F(ProcessGroupTest, LeavesTheFormerWhereNothingStartsInItsPlace) {
  const size_t child = Shell("exit 4");
  EXPECT_EQ(Next().code, 4);
  EXPECT_EQ(group_.StartAgain(child, {"again", {"no-such-program"}, {}}).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(group_.name(child), "shell");
  EXPECT_EQ(group_.num_alive(), 0u);
}

TEST_F(ProcessGroupTest, GivesVariablesAndInput) {
  const auto started = group_.Start({"shell",
                                     {"/bin/sh", "-c", "read line; echo $SOME_NAME $line"},
                                     {{"SOME_NAME", "value"}},
                                     true});
  ASSERT_TRUE(started.ok());
  group_.Write(*started, "hello\n");
  EXPECT_EQ(Next().code, 0);
  EXPECT_THAT(lines_, ElementsAre("value hello"));
}

TEST_F(ProcessGroupTest, SignalsTheChildrenOfAChildToo) {
  const size_t child =
      Shell("sh -c 'trap \"echo inner; exit 0\" TERM; echo ready; sleep 1000 & wait' & wait");
  AwaitLines(1);
  group_.Signal(child, SIGTERM);
  EXPECT_EQ(Next().code, 128 + SIGTERM);
  AwaitLines(2);
  EXPECT_THAT(lines_, ElementsAre("ready", "inner"));
}

TEST_F(ProcessGroupTest, DeadlinePassesWhileAChildPrintsWithoutPause) {
  Shell("while :; do echo x; done");
  EXPECT_EQ(Next(Clock::now() + std::chrono::milliseconds(30)).kind, Kind::kTimeout);
  EXPECT_EQ(group_.num_alive(), 1u);
}

TEST_F(ProcessGroupTest, SignalsForUsAreEvents) {
  kill(getpid(), SIGTERM);
  const ProcessGroup::Event event = Next();
  EXPECT_EQ(event.kind, Kind::kSignal);
  EXPECT_EQ(event.signal, SIGTERM);
}

TEST_F(ProcessGroupTest, KillAllReachesWhatLeftItsGroup) {
  Shell("trap '' TERM INT; setsid sleep 1000 & echo $!; sleep 1000");
  AwaitLines(1);
  const pid_t stray = static_cast<pid_t>(std::stol(lines_[0]));
  ASSERT_EQ(kill(stray, 0), 0);
  group_.KillAll();
  EXPECT_EQ(kill(stray, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_EQ(group_.num_alive(), 0u);
}

TEST_F(ProcessGroupTest, CountsTheCpuTimeOfAChild) {
  const size_t child =
      Shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; read x", true);
  AwaitLines(1);
  EXPECT_GT(group_.CpuTime(child), std::chrono::nanoseconds(0));
}

}  // namespace
}  // namespace bdn::cli
