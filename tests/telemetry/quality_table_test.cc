#include "common/telemetry/quality_table.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

// The series of a family by the values of its label: "0=0.5 1=0.25".
std::string SeriesOf(const Registry& registry, std::string_view name) {
  std::string text;
  for (const FamilySamples& family : registry.CollectFamilies()) {
    if (family.family.name != name) continue;
    for (const Series& series : family.series) {
      if (!text.empty()) text += ' ';
      text += series.label_value + "=" + std::to_string(series.value).substr(0, 5);
    }
  }
  return text;
}

struct Rig {
  QualityTable table;
  Registry registry;
  std::vector<std::unique_ptr<Registry::Source>> sources = AddQuality(&table, &registry);

  QualityTable::Link* Encoded(const std::string& tensor, uint32_t number, double ratio) {
    QualityTable::Link* link = table.Add(tensor, number);
    link->CountEncoding(true);
    link->Note({.step = 4, .ratio = ratio, .cosine = 1 - ratio, .owed_steps = 2 * ratio});
    return link;
  }
};

TEST(QualityTable, ShowsTheWorstOfATensorsPartitions) {
  Rig rig;
  rig.Encoded("w", 1, 0.25);
  rig.Encoded("w", 1, 0.5);
  rig.Encoded("b", 3, 0.125);
  EXPECT_EQ(SeriesOf(rig.registry, "residual_ratio"), "1=0.500 3=0.125");
  EXPECT_EQ(SeriesOf(rig.registry, "decoded_cosine"), "1=0.500 3=0.875");
  EXPECT_EQ(SeriesOf(rig.registry, "owed_steps"), "1=1.000 3=0.250");
}

TEST(QualityTable, CountsEncodingsThatWereNotFiniteMeasuredOrNot) {
  Rig rig;
  QualityTable::Link* link = rig.table.Add("w", 0);
  for (const bool is_finite : {true, false, true, true}) link->CountEncoding(is_finite);
  EXPECT_EQ(SeriesOf(rig.registry, "nonfinite_share"), "0=0.250");
  EXPECT_EQ(SeriesOf(rig.registry, "residual_ratio"), "");
}

TEST(QualityTable, HasAtMostSoManyGroupsHoweverManyTensors) {
  for (const uint32_t tensors : {1u, 32u, 33u, 100u, 1000u, 70000u}) {
    Rig rig;
    for (uint32_t i = 0; i < tensors; ++i) rig.Encoded(absl::StrFormat("t%d", i), i, 0.5);
    const auto groups = rig.table.Groups();
    EXPECT_LE(groups.size(), kMostQualityGroups) << tensors;
    EXPECT_GE(groups.size(), std::min<size_t>(tensors, kMostQualityGroups / 2)) << tensors;
    uint64_t encodings = 0;
    for (const auto& group : groups) encodings += group.figures.encodings;
    EXPECT_EQ(encodings, tensors);
    EXPECT_LE(rig.table.Tensors().size(), kMostSeries);
  }
}

TEST(QualityTable, KeepsTheTensorsOfTheLargestRatio) {
  Rig rig;
  for (uint32_t i = 0; i < 2 * kMostSeries; ++i) rig.Encoded(absl::StrFormat("t%d", i), i, 0.5);
  rig.Encoded("worst", 7, std::nan(""));
  rig.Encoded("bad", 8, 3);
  const auto tensors = rig.table.Tensors();
  ASSERT_EQ(tensors.size(), kMostSeries);
  EXPECT_EQ(tensors[0].name, "worst");
  EXPECT_EQ(tensors[1].name, "bad");
}

TEST(QualityTable, TakesWhatIsNoNumberForTheWorst) {
  Rig rig;
  rig.Encoded("a", 0, std::nan(""));
  rig.Encoded("a", 0, 0.5);
  EXPECT_TRUE(std::isnan(rig.table.Tensors()[0].figures.worst.ratio));
}

TEST(QualityTable, IsAnObjectAmongTheNumbers) {
  Rig rig;
  rig.Encoded("a \"b\"", 0, 0.5)->NoteGuard("warned");
  rig.Encoded("c", 1, std::numeric_limits<double>::infinity());
  EXPECT_EQ(
      rig.registry.Json(),
      R"({"quality":{"groups":{"0":{"encodings":1,"nonfinite_share":0.0,"step":4,)"
      R"("residual_ratio":0.5,"decoded_cosine":0.5,"owed_steps":1.0,"guard":"warned"},)"
      R"("1":{"encodings":1,"nonfinite_share":0.0,"step":4,"residual_ratio":null,)"
      R"("decoded_cosine":null,"owed_steps":null}},"tensors":{"a \"b\"":{"encodings":1,)"
      R"("nonfinite_share":0.0,"step":4,"residual_ratio":0.5,"decoded_cosine":0.5,)"
      R"("owed_steps":1.0,"guard":"warned"},"c":{"encodings":1,"nonfinite_share":0.0,"step":4,)"
      R"("residual_ratio":null,"decoded_cosine":null,"owed_steps":null}}}})");
}

TEST(QualityTable, IsNoObjectBeforeTheFirstEncoding) {
  Rig rig;
  EXPECT_EQ(rig.registry.Json(), "{}");
  rig.table.Add("w", 0);
  EXPECT_EQ(rig.registry.Json(), "{}");
}

TEST(QualityTable, CountsTensorsThatTheGuardHasSeen) {
  Rig rig;
  EXPECT_EQ(SeriesOf(rig.registry, "guarded_tensors"), "");
  rig.Encoded("a", 0, 2)->NoteGuard("warned");
  rig.Encoded("b", 1, 2)->NoteGuard("fallen back");
  rig.Encoded("b", 1, 2)->NoteGuard("warned");
  EXPECT_EQ(SeriesOf(rig.registry, "guarded_tensors"), "warned=1.000 fallen back=1.000");
}

TEST(QualityTable, LeavesOutOfJsonWhatIsNone) {
  Registry registry;
  const auto broken = registry.AddObject("broken", [] { return std::string("{\"a\": "); });
  const auto whole = registry.AddObject("whole", [] { return std::string("{\"a\": 1}"); });
  EXPECT_EQ(registry.Json(), R"({"whole":{"a":1}})");
}

TEST(QualityTable, WhatIsRemovedIsNotShown) {
  QualityTable table;
  QualityTable::Link* const gone = table.Add("w", 3);
  QualityTable::Link* const again = table.Add("w", 9);
  gone->CountEncoding(true);
  gone->CountEncoding(true);
  again->CountEncoding(true);
  table.Remove(gone);
  ASSERT_EQ(table.Tensors().size(), 1u);
  EXPECT_EQ(table.Tensors()[0].figures.encodings, 1u);
  ASSERT_EQ(table.Groups().size(), 1u);
  EXPECT_EQ(table.Groups()[0].first, 9u);
}

}  // namespace
}  // namespace bdn
