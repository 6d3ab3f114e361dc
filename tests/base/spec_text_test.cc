#include "common/base/spec_text.h"

#include <array>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

constexpr std::array kBread = {SpecOption{"slices", nullptr, "a multiple of 2 from 2 to 40"},
                               SpecOption{"share", "0.5", "below 1"},
                               SpecOption{"kind", "rye", "rye or wheat"},
                               SpecOption{"toasted", "false", "true or false"}};

struct Bread {
  size_t slices = 0;
  double share = 0;
  size_t kind = 0;
  bool toasted = false;
};

absl::StatusOr<Bread> Parse(std::string_view text) {
  SpecReader spec("bread", text);
  const std::string_view name = spec.Name();
  absl::StatusOr<OptionValues> values = spec.Options(name, kBread);
  if (!values.ok()) return values.status();
  constexpr std::array kKinds = {"rye", "wheat"};
  const Bread bread{.slices = values->Whole(0, 2, 40, 2),
                    .share = values->Real(1, [](double share) { return share < 1; }),
                    .kind = values->OneOf(2, kKinds),
                    .toasted = values->Flag(3)};
  if (absl::Status status = spec.Check(*values); !status.ok()) return status;
  if (absl::Status status = spec.ExpectEnd(); !status.ok()) return status;
  return bread;
}

std::string ErrorOf(std::string_view text) {
  const absl::Status status = Parse(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(SpecReader, ReadsOptionsInAnyOrderAndTheirDefaults) {
  const Bread bread = Parse(" loaf ( kind = wheat , slices=4 ) ").value();
  EXPECT_EQ(bread.slices, 4u);
  EXPECT_EQ(bread.share, 0.5);
  EXPECT_EQ(bread.kind, 1u);
  EXPECT_FALSE(bread.toasted);
  EXPECT_TRUE(Parse("loaf(slices=40,toasted=true)")->toasted);
}

TEST(SpecReader, PutsCaretsUnderTheFirstBadValue) {
  EXPECT_EQ(ErrorOf("loaf(slices=13, share=7)"),
            "bread: slices must be a multiple of 2 from 2 to 40\n"
            "  loaf(slices=13, share=7)\n"
            "              ^^");
  EXPECT_EQ(ErrorOf("loaf(slices=)"),
            "bread: slices must be a multiple of 2 from 2 to 40\n"
            "  loaf(slices=)\n"
            "              ^");
}

TEST(SpecReader, NamesTheOptionThatIsUnknownTwiceOrMissing) {
  EXPECT_THAT(ErrorOf("loaf(slice=2)"),
              HasSubstr("unknown option of loaf 'slice'; did you mean slices?"));
  EXPECT_THAT(ErrorOf("loaf(butter=2)"), HasSubstr("known: slices, share, kind, toasted"));
  EXPECT_THAT(ErrorOf("loaf(slices=2,slices=2)"), HasSubstr("slices is given twice"));
  EXPECT_EQ(ErrorOf("loaf"),
            "bread: loaf needs slices=, a multiple of 2 from 2 to 40\n"
            "  loaf\n"
            "  ^^^^");
}

TEST(SpecReader, SaysWhatItExpected) {
  EXPECT_THAT(ErrorOf("loaf(slices=2"), HasSubstr("expected a closing )"));
  EXPECT_THAT(ErrorOf("loaf("), HasSubstr("expected a closing )"));
  EXPECT_THAT(ErrorOf("loaf(slices)"), HasSubstr("expected = and a value"));
  EXPECT_EQ(ErrorOf("loaf(slices=2) x"),
            "bread: expected the end here\n"
            "  loaf(slices=2) x\n"
            "                 ^");
}

TEST(SpecText, IsTheNameAloneWithoutOptions) {
  EXPECT_EQ(SpecText("loaf", {}), "loaf");
  const std::array<std::string, 2> options = {"share=" + RealText(0.1), "toasted=true"};
  EXPECT_EQ(SpecText("loaf", options), "loaf(share=0.1,toasted=true)");
}

}  // namespace
}  // namespace bdn
