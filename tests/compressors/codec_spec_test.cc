#include "compressors/codec_spec.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "compressors/codec_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

std::string SpecOf(const std::string& text) {
  const auto link = ParseCodecSpec(text);
  return link.ok() ? link->spec() : std::string(link.status().message());
}

std::string ErrorOf(const std::string& text) {
  const auto link = ParseCodecSpec(text);
  EXPECT_EQ(link.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(link.status().message());
}

TEST(CodecSpec, CanonicalFormDropsDefaultsAndSpaces) {
  EXPECT_EQ(SpecOf("none"), "none");
  EXPECT_EQ(SpecOf("none()"), "none");
  EXPECT_EQ(SpecOf("  fp16 "), "fp16");
  EXPECT_EQ(SpecOf("onebit(block=0)"), "onebit");
  EXPECT_EQ(SpecOf("onebit( block = 256 )"), "onebit(block=256)");
  EXPECT_EQ(SpecOf("onebit(scale=bf16, block=64)"), "onebit(block=64,scale=bf16)");
  EXPECT_EQ(SpecOf("onebit(scale=fp32)"), "onebit");
  EXPECT_EQ(SpecOf("ef(onebit)"), "ef(onebit)");
  EXPECT_EQ(SpecOf(" ef ( topk ( ratio = 1e-2 ) ) "), "ef(topk(ratio=0.01))");
}

TEST(CodecSpec, CanonicalFormParsesToItself) {
  for (const char* text :
       {"none", "fp16", "bf16", "onebit", "onebit(block=64)", "ef(none)", "twobit",
        "delta(twobit(block=64))", "ef(onebit(block=256))", "topk(ratio=0.01)", "topk(ratio=1e-05)",
        "topk(ratio=0.3333333333333333)", "topk(ratio=1)", "sign"}) {
    EXPECT_EQ(SpecOf(text), text);
  }
}

TEST(CodecSpec, TakesSeveralOptionsInAnyOrder) {
  EXPECT_EQ(SpecOf("int4( round = nearest , group=64 )"), "int4(group=64,round=nearest)");
  EXPECT_EQ(SpecOf("dither(kind=natural,levels=3)"), "dither(levels=3,kind=natural)");
  EXPECT_EQ(SpecOf("blocks(size=1024,ratio=0.5)"), "blocks(ratio=0.5)");
  EXPECT_THAT(ErrorOf("int4(group=64,group=32)"), HasSubstr("group is given twice"));
  EXPECT_THAT(ErrorOf("int4(group=33)"), HasSubstr("group must be a multiple of 32"));
}

TEST(CodecSpec, MemoriesHaveOptionsOfTheirOwn) {
  EXPECT_EQ(SpecOf("ef(onebit, decay=0.9)"), "ef(onebit,decay=0.9)");
  EXPECT_EQ(SpecOf("ef(onebit,correction=lr)"), "ef(onebit,correction=lr)");
  EXPECT_EQ(SpecOf("ef(onebit,decay=1,correction=none)"), "ef(onebit)");
  EXPECT_EQ(SpecOf("delta(int4(group=2048))"), "delta(int4(group=2048))");
  const auto link = ParseCodecSpec("ef(onebit,decay=0.5,correction=lr)");
  EXPECT_EQ(link->decay, 0.5);
  EXPECT_TRUE(link->learning_rate_correction);
  EXPECT_THAT(ErrorOf("ef(onebit,decay=0)"), HasSubstr("decay must be a number above 0"));
  EXPECT_THAT(ErrorOf("ef(onebit,dekay=1)"), HasSubstr("did you mean decay?"));
  EXPECT_THAT(ErrorOf("delta(onebit,decay=1)"), HasSubstr("delta takes no options"));
  EXPECT_THAT(ErrorOf("delta(ef(onebit))"), HasSubstr("a memory inside a memory"));
}

TEST(CodecSpec, SaysWhetherThereIsErrorFeedback) {
  EXPECT_TRUE(ParseCodecSpec("ef(onebit)")->error_feedback);
  EXPECT_FALSE(ParseCodecSpec("onebit")->error_feedback);
}

TEST(CodecSpec, PutsACaretUnderTheBadPart) {
  EXPECT_EQ(ErrorOf("ef(onebot(block=256))"),
            "codec spec: unknown codec 'onebot'; did you mean onebit?\n"
            "  ef(onebot(block=256))\n"
            "     ^^^^^^");
  EXPECT_EQ(ErrorOf("onebit(blok=256)"),
            "codec spec: unknown option of onebit 'blok'; did you mean block?\n"
            "  onebit(blok=256)\n"
            "         ^^^^");
  EXPECT_EQ(ErrorOf("topk(ratio=1.5)"),
            "codec spec: ratio must be a number above 0 and at most 1\n"
            "  topk(ratio=1.5)\n"
            "             ^^^");
}

TEST(CodecSpec, ListsWhatIsKnownWhereNothingIsNear) {
  const std::string error = ErrorOf("zstandardised");
  std::string known = "known: ef, delta";
  for (const CodecRow& row : CodecRows()) absl::StrAppend(&known, ", ", row.name);
  EXPECT_THAT(error, HasSubstr(known));
  EXPECT_THAT(ErrorOf(""), HasSubstr("expected a codec"));
}

TEST(CodecSpec, RefusesWhatIsNoSpec) {
  for (const char* text : {"",
                           " ",
                           "(",
                           ")",
                           "ef",
                           "ef(",
                           "ef()",
                           "ef(ef(onebit))",
                           "ef(onebit",
                           "ef(onebit))",
                           "onebit)",
                           "onebit(",
                           "onebit(block",
                           "onebit(block=",
                           "onebit(block=)",
                           "onebit(block=-32)",
                           "onebit(block=31)",
                           "onebit(block=32x)",
                           "onebit(block=99999999999999999999)",
                           "onebit(block=4294967296)",
                           "onebit(block=32,block=64)",
                           "onebit(scale=fp16)",
                           "twobit(block=16)",
                           "twobit(scale=bf16)",
                           "topk",
                           "topk()",
                           "topk(0.1)",
                           "topk(ratio=0)",
                           "topk(ratio=-0.1)",
                           "topk(ratio=nan)",
                           "topk(ratio=inf)",
                           "topk(ratio=1e400)",
                           "topk(ratio=0.1 0.2)",
                           "none(block=32)",
                           "fp16(x)",
                           "onebit onebit",
                           "ONEBIT",
                           "one bit"}) {
    EXPECT_FALSE(ParseCodecSpec(text).ok()) << text;
  }
}

TEST(CodecSpec, ShowsUnprintableBytesAsQuestionMarks) {
  EXPECT_THAT(ErrorOf(std::string("one\0bit\n", 8)), HasSubstr("  one?bit?\n  ^^^"));
}

TEST(DescribeCodecs, NamesEveryCodecAndItsOptions) {
  for (const char* word : {"none", "fp16", "bf16", "onebit(block=0,scale=fp32)", "twobit(block=0)",
                           "topk(ratio=", "ef("}) {
    EXPECT_THAT(DescribeCodecs(), HasSubstr(word));
  }
}

}  // namespace
}  // namespace bdn
