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
  EXPECT_EQ(ToText(samples), "bytes_in 7, bytes_out 2, waiting 3");
}

TEST(Registry, ForgetsASourceWhenItGoes) {
  Registry registry;
  auto traffic = registry.Add(kTraffic, [](std::span<uint64_t>) {});
  const auto queue = registry.Add(kQueue, [](std::span<uint64_t> values) { values[0] = 3; });
  traffic.reset();
  EXPECT_EQ(ToText(registry.Collect()), "waiting 3");
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

}  // namespace
}  // namespace bdn
