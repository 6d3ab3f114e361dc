#include "compressors/codec_schedule.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

std::string SpecOf(const std::string& text) {
  const auto schedule = ParseCodecSchedule(text);
  return schedule.ok() ? schedule->spec() : std::string(schedule.status().message());
}

TEST(CodecSchedule, ASpecAloneIsOneStage) {
  EXPECT_EQ(SpecOf(" ef( onebit ) "), "ef(onebit)");
  EXPECT_EQ(ParseCodecSchedule("int8")->stages.size(), 1u);
}

TEST(CodecSchedule, HasACanonicalForm) {
  const std::string text = "none for 100; ef(topk(ratio=0.25)) for 400; ef(topk(ratio=0.01))";
  EXPECT_EQ(SpecOf("none for 100 ;ef(topk(ratio=0.25 )) for 400;  ef(topk(ratio=1e-2))"), text);
  EXPECT_EQ(SpecOf(text), text);
}

TEST(CodecSchedule, SaysWhatIsWrong) {
  EXPECT_THAT(SpecOf("none; fp16"), HasSubstr("'none' must say for how many steps"));
  EXPECT_THAT(SpecOf("none for 10; fp16 for 10"), HasSubstr("'fp16 for 10' must be the last"));
  EXPECT_THAT(SpecOf("none for 0; fp16"), HasSubstr("a number of steps from 1"));
  EXPECT_THAT(SpecOf("none for ten; fp16"), HasSubstr("a number of steps from 1"));
  EXPECT_THAT(SpecOf("none for 99999999999999999999; fp16"), HasSubstr("a number of steps"));
  EXPECT_THAT(SpecOf("none for 5; onebt"), HasSubstr("did you mean onebit?"));
  EXPECT_THAT(SpecOf("fp16 for 5; ef(onebit)"),
              HasSubstr("fp16 and ef(onebit) differ in their memory"));
  EXPECT_THAT(SpecOf("ef(fp16,decay=0.5) for 5; ef(onebit)"), HasSubstr("differ in their memory"));
  EXPECT_THAT(SpecOf("ef(fp16) for 5; none for 5; ef(onebit)"), HasSubstr("for none before them"));
  for (const char* text :
       {"", ";", "none for 5;", ";none", "for 5; none", "none for 5 for 6; none"}) {
    EXPECT_FALSE(ParseCodecSchedule(text).ok()) << text;
  }
}

TEST(CodecSchedule, PutsACaretUnderTheBadStage) {
  EXPECT_EQ(SpecOf("none for 5; onebt"),
            "codec spec: unknown codec 'onebt'; did you mean onebit?\n"
            "  none for 5; onebt\n"
            "              ^^^^^");
  EXPECT_EQ(SpecOf("none for 5; fp16 for 0; ef(onebit)"),
            "codec spec: 'fp16 for 0' must be for a number of steps from 1 to 2^40\n"
            "  none for 5; fp16 for 0; ef(onebit)\n"
            "              ^^^^^^^^^^");
}

}  // namespace
}  // namespace bdn
