#include "cli/line_printer.h"

#include <gtest/gtest.h>

#include <string>

namespace bdn::cli {
namespace {

using End = ProcessGroup::End;
using Stream = ProcessGroup::Stream;

class LinePrinterTest : public ::testing::Test {
 protected:
  void Put(const std::string& tag, const std::string& text, End end = End::kNewline) {
    shown_ += printer_.Put(Stream::kError, tag, text, end);
  }

  std::string shown_;
  LinePrinter printer_{false};
};

TEST_F(LinePrinterTest, TagsLines) {
  Put("a", "one");
  Put("b", "");
  EXPECT_EQ(shown_, "[a] one\n[b] \n");
}

TEST_F(LinePrinterTest, GoesOnWithAnOpenLineOfTheSameProcess) {
  Put("a", "name? ", End::kNone);
  Put("a", "me");
  EXPECT_EQ(shown_, "[a] name? me\n");
}

TEST_F(LinePrinterTest, AnotherProcessBeginsALineOfItsOwn) {
  Put("a", "name? ", End::kNone);
  Put("b", "two");
  Put("a", "me");
  EXPECT_EQ(shown_, "[a] name? \n[b] two\n[a] me\n");
}

TEST_F(LinePrinterTest, DrawsABarOverItself) {
  Put("a", "", End::kReturn);  // as tqdm begins
  Put("a", " 10%", End::kNone);
  Put("a", "", End::kReturn);
  Put("a", " 20%", End::kReturn);
  Put("a", "100%", End::kReturn);
  Put("a", "");
  EXPECT_EQ(shown_, "[a]  10%\r[a]  20%\r[a] 100%\r\n");
}

TEST_F(LinePrinterTest, LeavesABarThatAnotherProcessDrew) {
  Put("a", " 10%", End::kReturn);
  Put("b", "loss 1.5");
  Put("a", " 20%", End::kReturn);
  Put("b", " 20%", End::kReturn);
  EXPECT_EQ(shown_, "[a]  10%\r\n[b] loss 1.5\n[a]  20%\r[b]  20%\r");
  EXPECT_EQ(printer_.Finish(Stream::kError), "\n");
  EXPECT_EQ(printer_.Finish(Stream::kError), "");
}

TEST_F(LinePrinterTest, StreamsOfOneScreenShareALine) {
  LinePrinter screen(true);
  EXPECT_EQ(screen.Put(Stream::kError, "a", " 10%", End::kNone), "[a]  10%");
  EXPECT_EQ(screen.Put(Stream::kOut, "b", "loss", End::kNewline), "\n[b] loss\n");
  EXPECT_EQ(printer_.Put(Stream::kError, "a", " 10%", End::kNone), "[a]  10%");
  EXPECT_EQ(printer_.Put(Stream::kOut, "b", "loss", End::kNewline), "[b] loss\n");
}

}  // namespace
}  // namespace bdn::cli
