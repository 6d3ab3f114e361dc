#include "server/rows/row_rule.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernel_targets.h"
#include "server/rows/row_table.h"
#include "tests/support/normal_values.h"

// Each rule against its formula in float64, and the promises that all of them make.

namespace bdn {
namespace {

constexpr size_t kWidth = 7;
constexpr double kRate = 0.05;

using Doubles = std::vector<double>;

// A row in float64, with its moments and a count of its updates.
struct PlainRow {
  Doubles x, a, b;
  int updates = 0;
};
using PlainStep = std::function<void(const Doubles& g, int t, PlainRow* row)>;

struct Case {
  std::string spec;
  double first_moment;
  PlainStep step;
};

std::vector<Case> Cases() {
  return {
      {"sgd", 0,
       [](const Doubles& g, int, PlainRow* r) {
         for (size_t i = 0; i < g.size(); ++i) r->x[i] -= kRate * g[i];
       }},
      {"sgd(decay=0.1)", 0,
       [](const Doubles& g, int, PlainRow* r) {
         for (size_t i = 0; i < g.size(); ++i) r->x[i] -= kRate * (g[i] + 0.1 * r->x[i]);
       }},
      {"adagrad(eps=1e-05,initial=0.2)", 0.2,
       [](const Doubles& g, int, PlainRow* r) {
         for (size_t i = 0; i < g.size(); ++i) {
           r->a[i] += g[i] * g[i];
           r->x[i] -= kRate * g[i] / (std::sqrt(r->a[i]) + 1e-5);
         }
       }},
      {"rowwise_adagrad", 0,
       [](const Doubles& g, int, PlainRow* r) {
         double mean = 0;
         for (const double v : g) mean += v * v / static_cast<double>(g.size());
         r->a[0] += mean;
         for (size_t i = 0; i < g.size(); ++i) {
           r->x[i] -= kRate * g[i] / (std::sqrt(r->a[0]) + 1e-8);
         }
       }},
      {"adamw(decay=0.1)", 0,
       [](const Doubles& g, int t, PlainRow* r) {
         for (size_t i = 0; i < g.size(); ++i) {
           r->a[i] = 0.9 * r->a[i] + 0.1 * g[i];
           r->b[i] = 0.999 * r->b[i] + 0.001 * g[i] * g[i];
           const double rate = kRate * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
           r->x[i] = (1 - kRate * 0.1) * r->x[i] - rate * r->a[i] / (std::sqrt(r->b[i]) + 1e-8);
         }
       }},
      {"adamw(beta1=0.5,correction=row)", 0,
       [](const Doubles& g, int, PlainRow* r) {
         for (size_t i = 0; i < g.size(); ++i) {
           r->a[i] = 0.5 * r->a[i] + 0.5 * g[i];
           r->b[i] = 0.999 * r->b[i] + 0.001 * g[i] * g[i];
           const double rate =
               kRate * std::sqrt(1 - std::pow(0.999, r->updates)) / (1 - std::pow(0.5, r->updates));
           r->x[i] -= rate * r->a[i] / (std::sqrt(r->b[i]) + 1e-8);
         }
       }},
      {"ftrl(alpha=0.3,beta=0.5,l1=0.2,l2=0.1)", 0,
       [](const Doubles& g, int, PlainRow* r) {
         for (size_t i = 0; i < g.size(); ++i) {
           const double before = std::sqrt(r->b[i]);
           r->b[i] += g[i] * g[i];
           const double root = std::sqrt(r->b[i]);
           r->a[i] += g[i] - (root - before) / 0.3 * r->x[i];
           const double z = r->a[i];
           r->x[i] =
               std::abs(z) <= 0.2 ? 0 : -(z - std::copysign(0.2, z)) / ((0.5 + root) / 0.3 + 0.1);
         }
       }},
  };
}

TEST(RowRules, AreTheirFormulasInFloat64) {
  const InitialValues initial{
      .spec = *TableSpec::Parse("table(init=uniform,value=0.5)"), .run_seed = 3, .name_hash = 9};
  for (const Case& each : Cases()) {
    const RowRuleSpec spec = *RowRuleSpec::Parse(each.spec);
    const auto rule = MakeRowRule(spec);
    RowTable table(initial, rule.get(), kWidth, spec.MomentFloats(kWidth));
    std::vector<PlainRow> plain(10);
    std::vector<float> row(kWidth);
    for (uint64_t id = 0; id < plain.size(); ++id) {
      table.Read(id, row);
      plain[id] = {Doubles(row.begin(), row.end()), Doubles(kWidth, each.first_moment),
                   Doubles(kWidth, 0.0), 0};
    }
    EXPECT_EQ(table.rows(), 0u);
    for (int t = 1; t <= 40; ++t) {
      RowSums means(kWidth);
      for (uint64_t id = 0; id < plain.size(); ++id) {
        if ((id + static_cast<uint64_t>(t)) % 3 == 0) continue;  // is not touched
        const std::vector<float> g = Normal(kWidth, static_cast<uint32_t>(100 * t + id));
        std::copy(g.begin(), g.end(), means.Of(id));
        ++plain[id].updates;
        each.step(Doubles(g.begin(), g.end()), t, &plain[id]);
      }
      const auto stepped = table.Step(&means, static_cast<float>(kRate));
      ASSERT_TRUE(stepped.is_finite);
      table.Take(stepped);
    }
    for (uint64_t id = 0; id < plain.size(); ++id) {
      table.Read(id, row);
      for (size_t i = 0; i < kWidth; ++i) {
        EXPECT_NEAR(row[i], plain[id].x[i], 2e-5 * std::max(1.0, std::abs(plain[id].x[i])))
            << each.spec << " row " << id;
      }
    }
  }
}

// Makes some steps of one row of a width, and returns the bits of all that is left of it.
std::vector<uint32_t> BitsOfSteps(const RowRuleSpec& spec, size_t width) {
  const auto rule = MakeRowRule(spec);
  std::vector<float> row = Normal(width, 5), moments(spec.MomentFloats(width));
  rule->Begin(moments);
  for (uint32_t t = 1; t <= 20; ++t) {
    const std::vector<float> mean = Normal(width, 100 + t);
    const RowFacts facts = rule->FactsOf(static_cast<float>(kRate), t + 7);
    EXPECT_TRUE(rule->Update(facts, t, mean, row, moments));
  }
  std::vector<uint32_t> bits;
  for (const auto* values : {&row, &moments}) {
    for (const float value : *values) bits.push_back(std::bit_cast<uint32_t>(value));
  }
  return bits;
}

TEST(RowRules, GiveTheSameBitsOnEveryTarget) {
  for (const Case& each : Cases()) {
    const RowRuleSpec spec = *RowRuleSpec::Parse(each.spec);
    for (const size_t width : {1, 7, 8, 9, 64, 67, 1024}) {
      std::optional<std::vector<uint32_t>> first;
      for (const std::string& target : KernelTargets()) {
        const ScopedKernelTarget scoped(target);
        const std::vector<uint32_t> bits = BitsOfSteps(spec, width);
        if (!first.has_value()) first = bits;
        EXPECT_EQ(bits, *first) << each.spec << " of width " << width << " on " << target;
      }
    }
  }
}

TEST(RowRules, SayOnEveryTargetWhenARowIsNoLongerFinite) {
  for (const Case& each : Cases()) {
    const RowRuleSpec spec = *RowRuleSpec::Parse(each.spec);
    const auto rule = MakeRowRule(spec);
    for (const std::string& target : KernelTargets()) {
      const ScopedKernelTarget scoped(target);
      for (size_t at = 0; at < 19; ++at) {
        std::vector<float> row(19, 1.0f), moments(spec.MomentFloats(19)), mean(19, 0.5f);
        rule->Begin(moments);
        row[at] = std::numeric_limits<float>::max();
        mean[at] = -std::numeric_limits<float>::max();
        const RowFacts facts = rule->FactsOf(std::numeric_limits<float>::max(), 1);
        EXPECT_FALSE(rule->Update(facts, 1, mean, row, moments))
            << each.spec << " at " << at << " on " << target;
      }
    }
  }
}

TEST(RowSums, AreScaledToFiniteMeansOnEveryTarget) {
  for (const std::string& target : KernelTargets()) {
    const ScopedKernelTarget scoped(target);
    for (size_t bad = 0; bad <= kWidth; ++bad) {
      RowSums sums(kWidth);
      for (size_t i = 0; i < kWidth; ++i) {
        sums.Of(3)[i] = i == bad ? std::numeric_limits<float>::max() : static_cast<float>(i);
      }
      EXPECT_EQ(sums.Scale(1.5f), bad == kWidth) << target;
      if (bad == kWidth) {
        EXPECT_THAT(sums.Find(3), ::testing::ElementsAre(0, 1.5, 3, 4.5, 6, 7.5, 9));
      }
    }
  }
}

TEST(RowRules, LeaveRowsAloneThatAreNotTouched) {
  for (const Case& each : Cases()) {
    const RowRuleSpec spec = *RowRuleSpec::Parse(each.spec);
    const auto rule = MakeRowRule(spec);
    RowTable table({}, rule.get(), kWidth, spec.MomentFloats(kWidth));
    const auto step = [&](uint64_t id) {
      RowSums means(kWidth);
      std::fill_n(means.Of(id), kWidth, 0.7f);
      table.Take(table.Step(&means, 0.1f));
    };
    std::vector<float> before(kWidth), after(kWidth);
    step(1);
    table.Read(1, before);
    for (int i = 0; i < 5; ++i) step(2);
    table.Read(1, after);
    EXPECT_EQ(before, after) << each.spec;
    EXPECT_EQ(table.rows(), 2u);
  }
}

TEST(RowRules, HaveOneCanonicalForm) {
  EXPECT_EQ(RowRuleSpec::Parse(" adagrad( eps = 1e-10 , initial=0.50 )")->text(),
            "adagrad(initial=0.5)");
  EXPECT_EQ(RowRuleSpec::Parse("adamw(correction=row)")->text(), "adamw(correction=row)");
  EXPECT_EQ(RowRuleSpec::Parse("adamw(correction=step)")->text(), "adamw");
  EXPECT_EQ(RowRuleSpec::Parse("mean")->text(), "mean");
  EXPECT_TRUE(RowRuleSpec::Parse("mean")->is_mean());
  EXPECT_FALSE(RowRuleSpec::Parse("mean(decay=1)").ok());
  EXPECT_FALSE(RowRuleSpec::Parse("adagrad(eps=0)").ok());
  EXPECT_FALSE(RowRuleSpec::Parse("sgd(momentum=0.9)").ok());
}

TEST(RowTables, AreValues) {
  const auto rule = MakeRowRule(*RowRuleSpec::Parse("sgd"));
  RowTable table({}, rule.get(), 2, 0);
  table.Set(7, std::vector<float>{1, 2});
  RowTable copy = table;
  copy.Set(7, std::vector<float>{3, 4});
  std::vector<float> row(2);
  table.Read(7, row);
  EXPECT_THAT(row, ::testing::ElementsAre(1, 2));
  table = copy;
  table.Read(7, row);
  EXPECT_THAT(row, ::testing::ElementsAre(3, 4));
}

TEST(RowTables, AreScannedInShortLooksEvenIfNothingHasChanged) {
  constexpr size_t kMany = 70000;
  const auto rule = MakeRowRule(*RowRuleSpec::Parse("sgd"));
  RowTable table({}, rule.get(), 1, 0);
  for (uint64_t id = 0; id < kMany; ++id) table.Set(id, std::vector<float>{1});
  const RowTable::Scanned first = table.Scan(RowList::kRows, 0, /*since=*/9, 10);
  EXPECT_TRUE(first.records.empty());
  EXPECT_GT(first.next, 0u);
  EXPECT_LT(first.next, table.places(RowList::kRows));
  EXPECT_EQ(table.Scan(RowList::kRows, first.next, /*since=*/9, 10).next, 0u);
  size_t told = 0;
  uint64_t place = 0;
  do {
    const RowTable::Scanned piece = table.Scan(RowList::kRows, place, /*since=*/0, 1000);
    told += piece.records.size();
    EXPECT_TRUE(std::ranges::is_sorted(piece.records));
    place = piece.next;
  } while (place != 0);
  EXPECT_EQ(told, kMany);
}

TEST(RowTables, TakeNoMoreMemoryThanPromised) {
  constexpr size_t kWide = 64;
  const auto rule = MakeRowRule(*RowRuleSpec::Parse("adagrad"));
  RowTable table({}, rule.get(), kWide, kWide);
  const std::vector<float> row(kWide, 1.0f);
  for (uint64_t id = 0; id < 20000; ++id) table.Set(id * 977, row);
  EXPECT_LE(static_cast<double>(table.bytes()) / 20000, 4 * kWide * 2 + 44);
}

}  // namespace
}  // namespace bdn
