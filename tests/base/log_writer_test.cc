#include "common/base/log_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/log.h"

namespace bdn {
namespace {

// A writer at one end of a pipe; the test reads at the other when it likes.
class LogWriterTest : public testing::Test {
 protected:
  LogWriterTest() { EXPECT_EQ(pipe2(ends_, O_CLOEXEC), 0); }
  ~LogWriterTest() override {
    for (const int end : ends_) {
      if (end >= 0) close(end);
    }
  }

  LogWriter::Options options() const {
    return {.fd = ends_[1],
            .most_bytes = 1000,
            .patience = absl::Milliseconds(10),
            .gap_line = [](uint64_t dropped) { return absl::StrFormat("%d dropped\n", dropped); }};
  }
  void FillPipe() const {
    fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    const std::string text(4096, '-');
    while (write(ends_[1], text.data(), text.size()) > 0) continue;
    fcntl(ends_[1], F_SETFL, 0);
  }
  // Until `end` has come.
  std::string ReadUntil(const std::string& end) const {
    std::string all;
    char some[512];
    while (all.find(end) == std::string::npos) {
      const ssize_t count = read(ends_[0], some, sizeof(some));
      if (count <= 0) break;
      all.append(some, static_cast<size_t>(count));
    }
    return all;
  }
  std::string Waiting() const {
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    char some[4096];
    const ssize_t count = read(ends_[0], some, sizeof(some));
    return {some, static_cast<size_t>(std::max<ssize_t>(count, 0))};
  }
  void CloseReader() {
    close(ends_[0]);
    ends_[0] = -1;
  }

  int ends_[2] = {-1, -1};
};

TEST_F(LogWriterTest, HasWrittenWhenItReturns) {
  LogWriter::Options patient = options();
  patient.patience = absl::Seconds(30);
  LogWriter writer(patient);
  writer.Write("one\n");
  writer.Write("two\n");
  EXPECT_EQ(Waiting(), "one\ntwo\n");
}

TEST_F(LogWriterTest, NobodyWaitsForAReaderThatTakesNothing) {
  FillPipe();
  LogWriter writer(options());
  for (int i = 0; i < 10000; ++i) writer.Write("a line of twenty char\n");
  EXPECT_FALSE(writer.Flush(absl::Milliseconds(1)));
}

TEST_F(LogWriterTest, WhatWaitedIsWrittenLaterAndWhatWasDroppedIsCounted) {
  FillPipe();
  LogWriter writer(options());
  const std::string text = std::string(99, 'x') + "\n";
  for (int i = 0; i < 25; ++i) writer.Write(text);
  const std::string said = ReadUntil("dropped\n");
  std::string ten;
  for (int i = 0; i < 10; ++i) ten += text;
  EXPECT_EQ(said.substr(said.find('x')), ten + "15 dropped\n");
  EXPECT_TRUE(writer.Flush(absl::InfiniteDuration()));
  writer.Write("again\n");
  EXPECT_EQ(ReadUntil("again\n"), "again\n") << "said once";
}

TEST_F(LogWriterTest, ALineLongerThanAllThatMayWaitIsWritten) {
  LogWriter writer(options());
  writer.Write(std::string(3000, 'x') + "\n");
  EXPECT_EQ(ReadUntil("\n").size(), 3001u);
}

TEST_F(LogWriterTest, AReaderThatHasGoneDoesNoHarm) {
  LogWriter writer(options());
  CloseReader();
  writer.Write("to nobody\n");
  EXPECT_TRUE(writer.Flush(absl::InfiniteDuration()));
}

TEST_F(LogWriterTest, EndsThoughNobodyReads) {
  FillPipe();
  LogWriter writer(options());
  writer.Write("never\n");
}

TEST_F(LogWriterTest, AChildByForkLogsByAThreadOfItsOwn) {
  LogWarning("%s", "the parent's thread is there");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends_[1], 2);
    LogWarning("%s", "of the child");
    _exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(Waiting().find("of the child\n"), std::string::npos);
}

}  // namespace
}  // namespace bdn
