#include "common/telemetry/registry.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace bdn {
namespace {

constexpr Metric kTraffic[] = {{"bytes_in", Metric::Kind::kCounter, "bytes that came"},
                               {"bytes_out", Metric::Kind::kCounter, "bytes that went"}};
constexpr Metric kQueue[] = {{"waiting", Metric::Kind::kGauge, "tasks that wait"}};

TEST(Registry, CollectsEverySourceAsOfNowInTheOrderOfRegistration) {
  Registry registry;
  uint64_t in = 1;
  const auto traffic = registry.Add(kTraffic, [&](std::span<uint64_t> values) {
    values[0] = in;
    values[1] = 2;
  });
  const auto queue = registry.Add(kQueue, [](std::span<uint64_t> values) { values[0] = 3; });
  in = 7;
  const std::vector<Sample> samples = registry.Collect();
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].metric, &kTraffic[0]);
  EXPECT_EQ(samples[0].value, 7u);
  EXPECT_EQ(samples[2].metric, &kQueue[0]);
  EXPECT_EQ(samples[2].metric->kind, Metric::Kind::kGauge);
  EXPECT_EQ(ToJson(samples), R"({"bytes_in":7,"bytes_out":2,"waiting":3})");
  EXPECT_EQ(ToText(samples), "bytes_in 7 B, bytes_out 2 B");
}

TEST(Registry, ForgetsASourceWhenItGoes) {
  Registry registry;
  auto traffic = registry.Add(kTraffic, [](std::span<uint64_t>) {});
  const auto queue = registry.Add(kQueue, [](std::span<uint64_t> values) { values[0] = 3; });
  traffic.reset();
  EXPECT_EQ(ToJson(registry.Collect()), R"({"waiting":3})");
}

TEST(Registry, SaysInALineOfTheLogWhatHasCounted) {
  constexpr Metric kMetrics[] = {{"pushes", Metric::Kind::kCounter, "pushes"},
                                 {"frames_refused", Metric::Kind::kCounter, "refused"},
                                 {"plain_bytes_pushed", Metric::Kind::kCounter, "bytes"},
                                 {"bytes_held", Metric::Kind::kGauge, "bytes"}};
  Registry registry;
  const auto source = registry.Add(kMetrics, [](std::span<uint64_t> values) {
    values[0] = 123;
    values[1] = 0;
    values[2] = 86'688'012;
    values[3] = 5;
  });
  EXPECT_EQ(ToText(registry.Collect()), "pushes 123, plain_bytes_pushed 86.7 MB");
}

TEST(Registry, IsEmptyWithoutSources) {
  const Registry registry;
  EXPECT_TRUE(registry.Collect().empty());
  EXPECT_EQ(ToJson({}), "{}");
  EXPECT_EQ(ToText({}), "");
}

TEST(Registry, ASourceThatHasGoneIsNeverReadAgain) {
  Registry registry;
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop) registry.Collect();
  });
  for (int i = 0; i < 1000; ++i) {
    auto alive = std::make_unique<std::atomic<uint64_t>>(1);
    const auto source = registry.Add(
        kQueue, [counter = alive.get()](std::span<uint64_t> values) { values[0] = *counter; });
    *alive = 2;
  }
  stop = true;
  reader.join();
  EXPECT_TRUE(registry.Collect().empty());
}

constexpr Family kBytes = {"traffic_bytes", Metric::Kind::kCounter, "of frames", "direction"};
constexpr Family kWaits = {"wait_seconds", Metric::Kind::kGauge, "by rank", "rank"};
constexpr Family kTime = {"busy_seconds", Metric::Kind::kCounter, "of threads", nullptr, 1e-9};
constexpr Metric kMixed[] = {{"bytes_in", Metric::Kind::kCounter, "in", &kBytes, "in"},
                             {"busy_ns", Metric::Kind::kCounter, "busy", &kTime},
                             {"waiting", Metric::Kind::kGauge, "tasks that wait"},
                             {"hidden", Metric::Kind::kGauge, "told elsewhere", &kNotExported},
                             {"bytes_out", Metric::Kind::kCounter, "out", &kBytes, "out"}};

TEST(Registry, FamiliesAreForExportersAloneAndEachIsThereOnce) {
  Registry registry;
  const auto mixed = registry.Add(kMixed, [](std::span<uint64_t> values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * (i + 1);
  });
  const auto waits = registry.AddFamily(&kWaits, [] {
    return std::vector<Series>{{"0", 1.5}, {"7", 2}};
  });
  EXPECT_EQ(ToJson(registry.Collect()),
            R"({"bytes_in":2,"busy_ns":4,"waiting":6,"hidden":8,"bytes_out":10})");
  const std::vector<FamilySamples> families = registry.CollectFamilies();
  ASSERT_EQ(families.size(), 4u);
  EXPECT_STREQ(families[0].family.name, "traffic_bytes");
  ASSERT_EQ(families[0].series.size(), 2u);
  EXPECT_EQ(families[0].series[1].label_value, "out");
  EXPECT_EQ(families[0].series[1].value, 10);
  EXPECT_DOUBLE_EQ(families[1].series[0].value, 4e-9);
  EXPECT_STREQ(families[2].family.name, "waiting");
  EXPECT_EQ(families[3].series[1].label_value, "7");
}

TEST(KeepLargest, LeavesTheLargestSoThatTheNumberIsBounded) {
  std::vector<Series> series;
  for (int i = 0; i < 300; ++i) series.push_back({std::to_string(i), (i * 7) % 300 * 1.0});
  KeepLargest(&series);
  ASSERT_EQ(series.size(), kMostSeries);
  EXPECT_EQ(series.front().value, 299);
  EXPECT_EQ(series.back().value, 300 - 256);
}

}  // namespace
}  // namespace bdn
