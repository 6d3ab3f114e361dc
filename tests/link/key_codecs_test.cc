#include "link/key_codecs.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

std::string PushAt(const KeyCodecs& codecs, uint64_t step) {
  return codecs.Push(step).codec().spec();
}

TEST(KeyCodecs, StagesFollowEachOtherBehindTheWarmUp) {
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

TEST(KeyCodecs, AddsUndecodedOnlyWhereBothWaysHaveTheSameCodec) {
  const std::string blocks = "none for 2; blocks(ratio=0.5,size=8)";
  const auto codecs =
      MakeKeyCodecs({.push_spec = blocks, .pull_spec = blocks, .segment_elements = {100}});
  ASSERT_TRUE(codecs.ok()) << codecs.status();
  EXPECT_FALSE(codecs->AddsEncoded(2));
  EXPECT_TRUE(codecs->AddsEncoded(3));
}

TEST(KeyCodecs, GoUncompressedFromTheEarliestStepThatIsAgreedOn) {
  const auto codecs = MakeKeyCodecs(
      {.push_spec = "ef(topk(ratio=0.5))", .pull_spec = "int8", .segment_elements = {100, 7}});
  ASSERT_TRUE(codecs.ok()) << codecs.status();
  EXPECT_FALSE(codecs->IsUncompressed(uint64_t{1} << 60));
  codecs->GoUncompressed(5);
  codecs->GoUncompressed(9);
  EXPECT_EQ(PushAt(*codecs, 4), "topk(ratio=0.5)");
  EXPECT_EQ(codecs->Pull(4).codec().id(), CodecId::kInt8);
  EXPECT_EQ(PushAt(*codecs, 5), "none");
  EXPECT_EQ(codecs->Pull(5).codec().spec(), "none");
  EXPECT_EQ(codecs->Pull(5).segment_offset(1), 100u);
  EXPECT_EQ(codecs->MaxEncodedBytes(), codecs->Push(5).MaxEncodedBytes());
}

TEST(KeyCodecs, WithoutAMemoryStayAsTheyAre) {
  const auto codecs =
      MakeKeyCodecs({.push_spec = "onebit", .pull_spec = "int8", .segment_elements = {100}});
  codecs->GoUncompressed(1);
  EXPECT_EQ(PushAt(*codecs, 3), "onebit");
  EXPECT_EQ(codecs->uncompressed, nullptr);
}

TEST(KeyCodecs, GoUncompressedWhereRepliesMayHoldGuesses) {
  const std::string sketch = "exactsketch(cells=0.1)";
  const auto codecs =
      MakeKeyCodecs({.push_spec = sketch, .pull_spec = sketch, .segment_elements = {100}});
  EXPECT_TRUE(codecs->reply_guesses());
  EXPECT_TRUE(codecs->AddsEncoded(4));
  codecs->GoUncompressed(5);
  EXPECT_TRUE(codecs->AddsEncoded(4));
  EXPECT_FALSE(codecs->AddsEncoded(5));
  EXPECT_EQ(PushAt(*codecs, 5), "none");
  EXPECT_EQ(codecs->Pull(5).codec().spec(), "none");
  EXPECT_EQ(codecs->MaxEncodedBytes(), codecs->Push(5).MaxEncodedBytes());
  const auto pushed =
      MakeKeyCodecs({.push_spec = sketch, .pull_spec = "none", .segment_elements = {100}});
  EXPECT_EQ(pushed->uncompressed, nullptr) << "servers see those guesses, and workers none";
  const auto fed_back = MakeKeyCodecs(
      {.push_spec = "none", .pull_spec = "ef(" + sketch + ")", .segment_elements = {100}});
  EXPECT_FALSE(fed_back->reply_guesses()) << "the next reply makes up for them";
}

TEST(KeyCodecs, SignsStaySigns) {
  const auto codecs = MakeKeyCodecs({.push_spec = "ef(onebit)",
                                     .pull_spec = "sign",
                                     .segment_elements = {100},
                                     .holds_weights = true,
                                     .steps_by_signs = true});
  ASSERT_TRUE(codecs.ok()) << codecs.status();
  codecs->GoUncompressed(2);
  EXPECT_EQ(PushAt(*codecs, 2), "none");
  EXPECT_EQ(codecs->Pull(2).codec().id(), CodecId::kSign);
}

TEST(KeyCodecs, WeightsArePulledByOneCodec) {
  const auto codecs = MakeKeyCodecs({.push_spec = "none",
                                     .pull_spec = "none for 2; delta(int4)",
                                     .segment_elements = {100},
                                     .holds_weights = true});
  EXPECT_THAT(std::string(codecs.status().message()), HasSubstr("use warmup for dense steps"));
}

}  // namespace
}  // namespace bdn
