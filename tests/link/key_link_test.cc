#include "link/key_link.h"

#include <string>

#include "common/base/draw.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

KeyEntry EntryOf(const std::string& push, const std::string& pull, const std::string& rule) {
  return {.push_spec = push,
          .pull_spec = pull,
          .rule = rule,
          .segments = {{.tensor = 0, .elements = 100}, {.tensor = 1, .elements = 28}}};
}

TEST(KeyLink, IsMadeOfWhatTheCatalogueSays) {
  KeyEntry entry = EntryOf("ef(onebit)", "delta(int4)", "sgd(momentum=0.9)");
  entry.warmup_steps = 5;
  const absl::StatusOr<KeyLink> link = MakeKeyLink(entry, "embedding");
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ(link->name_hash, Draw::HashName("embedding"));
  EXPECT_EQ(link->rule.text(), "sgd(momentum=0.9)");
  EXPECT_EQ(link->codecs.Reply(5), ReplyKind::kWeights);
  EXPECT_EQ(link->codecs.Reply(6), ReplyKind::kDelta);
  EXPECT_EQ(link->codecs.Push(6).num_segments(), 2u);
  EXPECT_EQ(link->codecs.Push(6).num_elements(), 128u);
}

TEST(KeyLink, OfABroadcastIsAHashAlone) {
  const auto link = MakeKeyLink({.dtype = DType::kUInt8, .kind = KeyKind::kBroadcast}, "seed");
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ(link->name_hash, Draw::HashName("seed"));
  EXPECT_EQ(link->codecs.push, nullptr);
}

TEST(KeyLink, RefusesWhatDoesNotGoTogether) {
  const auto error_of = [](const KeyEntry& entry) {
    return std::string(MakeKeyLink(entry, "w").status().message());
  };
  EXPECT_THAT(error_of(EntryOf("onebot", "none", "mean")), HasSubstr("did you mean onebit?"));
  EXPECT_THAT(error_of(EntryOf("none", "none", "adamv")), HasSubstr("did you mean adamw?"));
  EXPECT_THAT(error_of(EntryOf("none", "delta(int4)", "mean")),
              HasSubstr("delta(int4) is for pulling weights that servers hold"));
  EXPECT_THAT(error_of(EntryOf("none", "sign", "sgd")), HasSubstr("only the rule sign_momentum"));
  KeyEntry doubles = EntryOf("onebit", "none", "mean");
  doubles.dtype = DType::kFloat64;
  EXPECT_THAT(error_of(doubles), HasSubstr("codec onebit does not take float64; use none"));
}

TEST(CanonicalizeSpecs, MakesEqualWhatMeansTheSame) {
  TensorDeclaration tensor{.name = "w",
                           .elements = 100,
                           .push_spec = " ef( topk( ratio=1e-2 ) )",
                           .pull_spec = "none for 10;fp16",
                           .rule = "mean()"};
  ASSERT_TRUE(CanonicalizeSpecs(&tensor).ok());
  EXPECT_EQ(tensor.push_spec, "ef(topk(ratio=0.01))");
  EXPECT_EQ(tensor.pull_spec, "none for 10; fp16");
  EXPECT_EQ(tensor.rule, "mean");
}

TEST(CanonicalizeSpecs, SaysWhatItsKeysWouldBeRefusedFor) {
  TensorDeclaration tensor{.name = "w", .elements = 100, .pull_spec = "delta(int4)"};
  EXPECT_THAT(std::string(CanonicalizeSpecs(&tensor).message()),
              HasSubstr("is for pulling weights that servers hold"));
  tensor.rule = "sgd";
  EXPECT_TRUE(CanonicalizeSpecs(&tensor).ok());
}

}  // namespace
}  // namespace bdn
