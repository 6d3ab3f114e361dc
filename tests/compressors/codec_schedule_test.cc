#include "compressors/codec_schedule.h"

#include <string>

#include "compressors/key_codecs.h"
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

std::string PushAt(const KeyCodecs& codecs, uint64_t step) {
  return codecs.Push(step).codec().spec();
}

TEST(CodecSchedule, StagesFollowEachOtherBehindTheWarmUp) {
  KeyCodecsOptions options{
      .push_spec = "fp16 for 3; int8 for 2; int4", .pull_spec = "none", .segment_elements = {100}};
  const auto codecs = MakeKeyCodecs(options);
  ASSERT_TRUE(codecs.ok()) << codecs.status();
  EXPECT_EQ(PushAt(*codecs, 1), "fp16");
  EXPECT_EQ(PushAt(*codecs, 3), "fp16");
  EXPECT_EQ(PushAt(*codecs, 4), "int8");
  EXPECT_EQ(PushAt(*codecs, 5), "int8");
  EXPECT_EQ(PushAt(*codecs, 6), "int4");
  EXPECT_EQ(codecs->Pull(4).codec().spec(), "none");

  options.warmup_steps = 4;  // takes the place of the steps that it covers
  const auto warm = MakeKeyCodecs(options);
  EXPECT_EQ(PushAt(*warm, 4), "none");
  EXPECT_EQ(PushAt(*warm, 5), "int8");
  EXPECT_EQ(PushAt(*warm, 6), "int4");
  EXPECT_EQ(warm->Pull(4).codec().spec(), "none");
}

TEST(CodecSchedule, AddsUndecodedOnlyWhereBothWaysHaveTheSameCodec) {
  const std::string blocks = "none for 2; blocks(ratio=0.5,size=8)";
  const auto codecs =
      MakeKeyCodecs({.push_spec = blocks, .pull_spec = blocks, .segment_elements = {100}});
  ASSERT_TRUE(codecs.ok()) << codecs.status();
  EXPECT_FALSE(codecs->AddsEncoded(2));
  EXPECT_TRUE(codecs->AddsEncoded(3));
}

TEST(CodecSchedule, WeightsArePulledByOneCodec) {
  const auto codecs = MakeKeyCodecs({.push_spec = "none",
                                     .pull_spec = "none for 2; delta(int4)",
                                     .segment_elements = {100},
                                     .holds_weights = true});
  EXPECT_THAT(std::string(codecs.status().message()), HasSubstr("use warmup for dense steps"));
}

}  // namespace
}  // namespace bdn
