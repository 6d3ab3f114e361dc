#include "common/telemetry/registry.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace bdn {
namespace {

struct Traffic {
  uint64_t in = 0;
  uint64_t out = 0;
};
constexpr MetricRow<Traffic> kTraffic[] = {
    {{"bytes_in", Metric::Kind::kCounter, "bytes that came"},
     [](const Traffic& now) { return now.in; }},
    {{"bytes_out", Metric::Kind::kCounter, "bytes that went"},
     [](const Traffic& now) { return now.out; }}};
constexpr MetricRow<uint64_t> kQueue[] = {{{"waiting", Metric::Kind::kGauge, "tasks that wait"},
                                           [](const uint64_t& now) { return now; }}};

TEST(Registry, CollectsEverySourceAsOfNowInTheOrderOfRegistration) {
  Registry registry;
  uint64_t in = 1;
  const auto traffic = registry.Add(kTraffic, [&] { return Traffic{in, 2}; });
  const auto queue = registry.Add(kQueue, [] { return uint64_t{3}; });
  in = 7;
  const std::vector<Sample> samples = registry.Collect();
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].metric, &kTraffic[0].metric);
  EXPECT_EQ(samples[0].value, 7u);
  EXPECT_EQ(samples[2].metric, &kQueue[0].metric);
  EXPECT_EQ(samples[2].metric->kind, Metric::Kind::kGauge);
  EXPECT_EQ(ToJson(samples), R"({"bytes_in":7,"bytes_out":2,"waiting":3})");
  EXPECT_EQ(ToText(samples), "bytes_in 7 B, bytes_out 2 B");
}

TEST(Registry, ForgetsASourceWhenItGoes) {
  Registry registry;
  auto traffic = registry.Add(kTraffic, [] { return Traffic(); });
  const auto queue = registry.Add(kQueue, [] { return uint64_t{3}; });
  traffic.reset();
  EXPECT_EQ(ToJson(registry.Collect()), R"({"waiting":3})");
}

TEST(Registry, SaysInALineOfTheLogWhatHasCounted) {
  constexpr Metric kPushes = {"pushes", Metric::Kind::kCounter, "pushes"};
  constexpr Metric kRefused = {"frames_refused", Metric::Kind::kCounter, "refused"};
  constexpr Metric kBytes = {"plain_bytes_pushed", Metric::Kind::kCounter, "bytes"};
  constexpr Metric kHeld = {"bytes_held", Metric::Kind::kGauge, "bytes"};
  Registry registry;
  const auto source = registry.Add([&](std::vector<Sample>* samples) {
    samples->insert(samples->end(),
                    {{&kPushes, 123}, {&kRefused, 0}, {&kBytes, 86'688'012}, {&kHeld, 5}});
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
    const auto source = registry.Add(kQueue, [counter = alive.get()] { return counter->load(); });
    *alive = 2;
  }
  stop = true;
  reader.join();
  EXPECT_TRUE(registry.Collect().empty());
}

constexpr Family kBytes = {"traffic_bytes", Metric::Kind::kCounter, "of frames", "direction"};
constexpr Family kWaits = {"wait_seconds", Metric::Kind::kGauge, "by rank", "rank"};
constexpr Family kTime = {"busy_seconds", Metric::Kind::kCounter, "of threads", nullptr, 1e-9};
constexpr MetricRow<uint64_t> kMixed[] = {
    {{"bytes_in", Metric::Kind::kCounter, "in", &kBytes, "in"},
     [](const uint64_t& unit) { return 2 * unit; }},
    {{"busy_ns", Metric::Kind::kCounter, "busy", &kTime},
     [](const uint64_t& unit) { return 4 * unit; }},
    {{"waiting", Metric::Kind::kGauge, "tasks that wait"},
     [](const uint64_t& unit) { return 6 * unit; }},
    {{"hidden", Metric::Kind::kGauge, "told elsewhere", &kNotExported},
     [](const uint64_t& unit) { return 8 * unit; }},
    {{"bytes_out", Metric::Kind::kCounter, "out", &kBytes, "out"},
     [](const uint64_t& unit) { return 10 * unit; }}};

TEST(Registry, FamiliesAreForExportersAloneAndEachIsThereOnce) {
  Registry registry;
  const auto mixed = registry.Add(kMixed, [] { return uint64_t{1}; });
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
