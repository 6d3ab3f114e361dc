#include "link/key_cost.h"

#include <gtest/gtest.h>

#include "link/key_link.h"

namespace bdn {
namespace {

constexpr uint64_t kN = 1000;

KeyEntry Entry(const std::string& push, const std::string& pull, const std::string& rule) {
  return {.push_spec = push,
          .pull_spec = pull,
          .rule = rule,
          .segments = {{.elements = kN}},
          .elements = kN};
}

KeyCost CostOf(const KeyEntry& entry, size_t workers) {
  const KeyLink link = MakeKeyLink(entry, "tensor").value();
  return CostOfKey(entry, link.rule, link.codecs, workers);
}

TEST(KeyCostTest, OfAMeanIsTheReplyAndTheOpenRound) {
  const KeyEntry entry = Entry("none", "none", "mean");
  for (const size_t workers : {1, 2, 3}) {
    const KeyCost cost = CostOf(entry, workers);
    EXPECT_EQ(cost.state, 0u);
    EXPECT_EQ(cost.reply, 4 * kN);
    EXPECT_EQ(cost.open, (workers - 1) * 4 * kN);
    EXPECT_EQ(cost.late, 0u);
  }
}

TEST(KeyCostTest, InRankOrderHasAnEndThatDoesNotDependOnTheWorkers) {
  for (const char* codec : {"none", "onebit", "int8", "randomk(ratio=0.1)"}) {
    const KeyEntry entry = Entry(codec, codec, "mean");
    EXPECT_EQ(CostOf(entry, 1000).in_order(), CostOf(entry, 100).in_order()) << codec;
    EXPECT_GT(CostOf(entry, 1000).late, CostOf(entry, 100).late) << codec;
  }
  EXPECT_EQ(CostOf(Entry("none", "none", "mean"), 100).open, 4 * kN + 4 * kN / 8 + 4 * kN);
}

TEST(KeyCostTest, CountsTheArraysOfRuleAndMemories) {
  EXPECT_EQ(CostOf(Entry("none", "ef(onebit)", "mean"), 2).state, 4 * kN);
  EXPECT_EQ(CostOf(Entry("none", "none", "sgd"), 2).state, 4 * kN);
  EXPECT_EQ(CostOf(Entry("none", "none", "adamw"), 2).state, 12 * kN);
  EXPECT_EQ(CostOf(Entry("none", "none", "adamw"), 2).reply, 0u) << "the weights are the reply";
  EXPECT_EQ(CostOf(Entry("none", "delta(int8)", "adamw"), 2).state, 16 * kN);
  EXPECT_EQ(CostOf(Entry("none", "bf16", "adamw"), 2).reply, 2 * kN);
}

TEST(KeyCostTest, CountsTheLongestOfAllSteps) {
  KeyEntry entry = Entry("onebit", "onebit", "mean");
  EXPECT_LT(CostOf(entry, 2).reply, kN);
  entry.warmup_steps = 1;
  EXPECT_EQ(CostOf(entry, 2).reply, 4 * kN);
}

TEST(KeyCostTest, OfABroadcastIsItsValueAndTheNext) {
  const KeyEntry entry{.dtype = DType::kFloat64,
                       .kind = KeyKind::kBroadcast,
                       .segments = {{.elements = kN}},
                       .elements = kN};
  EXPECT_EQ(CostOf(entry, 2).in_order(), 16 * kN);
}

}  // namespace
}  // namespace bdn
