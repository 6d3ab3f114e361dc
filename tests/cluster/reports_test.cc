#include "common/cluster/reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ReportName, IsShortPrintableAscii) {
  for (const char* name : {"loss", "loss/train", "lr[0]", "a&<b>"}) {
    EXPECT_TRUE(CheckReportName(name).ok()) << name;
  }
  EXPECT_TRUE(CheckReportName(std::string(64, 'x')).ok());
  for (const std::string& name :
       {std::string(), std::string(65, 'x'), std::string("a b"), std::string("a\nb"),
        std::string("a\0b", 3), std::string("\xc3\xa4"), std::string("a\"b"), std::string("a'b"),
        std::string("a\\b"), std::string("\x7f")}) {
    EXPECT_EQ(CheckReportName(name).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_THAT(std::string(CheckReportName("a b").message()), HasSubstr("0x20 at 1"));
}

TEST(ReportBuffer, HandsOverWhatWaitsOnce) {
  ReportBuffer buffer;
  EXPECT_TRUE(buffer.Add({"loss", 1, 2.5}).ok());
  EXPECT_TRUE(buffer.Add({"loss", 2, 2.25}).ok());
  EXPECT_THAT(buffer.Take(),
              ElementsAre(ReportedValue{"loss", 1, 2.5}, ReportedValue{"loss", 2, 2.25}));
  EXPECT_THAT(buffer.Take(), IsEmpty());
}

TEST(ReportBuffer, WhatCouldNotBeSentComesBeforeWhatIsNewer) {
  ReportBuffer buffer;
  (void)buffer.Add({"loss", 1, 1});
  const auto lost = buffer.Take();
  (void)buffer.Add({"loss", 2, 2});
  buffer.GiveBack(lost);
  EXPECT_THAT(buffer.Take(), ElementsAre(ReportedValue{"loss", 1, 1}, ReportedValue{"loss", 2, 2}));
}

TEST(ReportBuffer, ThinsEveryNameAndKeepsItsLatest) {
  ReportBuffer buffer;
  constexpr Step kSteps = 10000;
  for (Step step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(buffer.Add({"loss", step, 1}).ok());
    ASSERT_TRUE(buffer.Add({"rate", step, 1}).ok());
  }
  std::map<std::string, std::vector<Step>> steps;
  const auto values = buffer.Take();
  EXPECT_LE(values.size(), kMostReports);
  for (const ReportedValue& value : values) steps[value.name].push_back(value.step);
  for (const char* name : {"loss", "rate"}) {
    ASSERT_GT(steps[name].size(), kMostReports / 8) << name;
    EXPECT_LT(steps[name].front(), kSteps / 10) << name << ": the beginning is there";
    EXPECT_EQ(steps[name].back(), kSteps - 1) << name;
  }
}

TEST(ReportBuffer, RefusesNamesThatAreWrongOrTooMany) {
  ReportBuffer buffer;
  EXPECT_EQ(buffer.Add({"a b", 0, 1}).code(), absl::StatusCode::kInvalidArgument);
  for (size_t i = 0; i < kMostReportNames; ++i) {
    ASSERT_TRUE(buffer.Add({"n" + std::to_string(i), 0, 1}).ok());
  }
  (void)buffer.Take();
  EXPECT_EQ(buffer.Add({"more", 0, 1}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(buffer.Add({"n0", 1, 1}).ok());
}

}  // namespace
}  // namespace bdn
