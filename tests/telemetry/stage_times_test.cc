#include "common/telemetry/stage_times.h"

#include <set>
#include <thread>

#include "gtest/gtest.h"

namespace bdn {
namespace {

class ManualStageClock final : public StageClock {
 public:
  int64_t WallNs() const override { return wall_; }
  int64_t ThreadCpuNs() const override { return cpu_; }
  void Pass(int64_t wall, int64_t cpu) {
    wall_ += wall;
    cpu_ += cpu;
  }

 private:
  int64_t wall_ = 1000;
  int64_t cpu_ = 500;
};

TEST(StageTimes, CountsItemsBytesAndTimesOfEachStageAlone) {
  ManualStageClock clock;
  StageTimes times(&clock);
  EXPECT_EQ(times.Read(), StageCounts());
  times.Add(Stage::kSum, {.items = 1, .bytes = 100, .wall_ns = 7, .cpu_ns = 5}, {}, 0);
  times.Add(Stage::kSum, {.items = 2, .bytes = 10, .wall_ns = 1, .cpu_ns = 1}, {}, 0);
  times.Add(Stage::kDeliver, {.items = 1}, {}, 0);
  StageCounts expected;
  expected[Stage::kSum] = {.items = 3, .bytes = 110, .wall_ns = 8, .cpu_ns = 6};
  expected[Stage::kDeliver] = {.items = 1};
  EXPECT_EQ(times.Read(), expected);
}

TEST(StageTimes, LosesNothingOfThreadsThatAddAtOnce) {
  constexpr int kThreads = 4;
  constexpr uint64_t kEach = 20000;
  ManualStageClock clock;
  StageTimes times(&clock);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (uint64_t n = 0; n < kEach; ++n) {
        times.Add(Stage::kEncode, {.items = 1, .bytes = 3, .wall_ns = 5, .cpu_ns = 2}, {}, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  constexpr uint64_t kAll = kThreads * kEach;
  const StageCount expected = {kAll, 3 * kAll, 5 * kAll, 2 * kAll};
  EXPECT_EQ(times.Read()[Stage::kEncode], expected);
}

TEST(StageTimes, BucketsReachPowersOfFourMicroseconds) {
  EXPECT_EQ(StageBucketOf(0), 0u);
  const auto bounds = StageBoundsInSeconds();
  ASSERT_EQ(bounds.size(), kNumStageBounds);
  uint64_t bound_ns = 1000;
  for (size_t i = 0; i < bounds.size(); ++i, bound_ns *= 4) {
    EXPECT_DOUBLE_EQ(bounds[i], static_cast<double>(bound_ns) / 1e9);
    EXPECT_EQ(StageBucketOf(bound_ns), i);
    EXPECT_EQ(StageBucketOf(bound_ns + 1), i + 1);
  }
  EXPECT_EQ(StageBucketOf(UINT64_MAX), kNumStageBounds);
}

TEST(StageTimes, WhatIsAddedWithoutAnItemIsTimeInNoBucket) {
  ManualStageClock clock;
  StageTimes times(&clock);
  times.Add(Stage::kSum, {.items = 0, .wall_ns = 5000}, {}, 0);
  times.Add(Stage::kSum, {.items = 3, .wall_ns = 3000}, {}, 0);
  EXPECT_EQ(times.ReadBuckets(Stage::kSum), (StageBuckets{3}));
  EXPECT_EQ(times.Read()[Stage::kSum].wall_ns, 8000u);
}

TEST(StageSpan, TakesWallTimeFromOneEndToTheNext) {
  ManualStageClock clock;
  StageTimes times(&clock);
  const StageSpan send(&times);
  clock.Pass(30, 4);
  const StageSpan wait = send.End(Stage::kSend, 64, {});
  clock.Pass(12, 4);
  wait.End(Stage::kWait, 32, {});
  EXPECT_EQ(times.Read()[Stage::kSend], (StageCount{1, 64, 30, 0}));
  EXPECT_EQ(times.Read()[Stage::kWait], (StageCount{1, 32, 12, 0}));
}

TEST(StageSpan, OfAClockThatWentBackTookNoTime) {
  ManualStageClock clock;
  StageTimes times(&clock);
  const StageSpan span(&times);
  clock.Pass(-5, 0);
  span.End(Stage::kReply, 1, {});
  EXPECT_EQ(times.Read()[Stage::kReply], (StageCount{1, 1, 0, 0}));
}

TEST(StageLaps, TakeWallAndCpuTimeWithoutAGap) {
  ManualStageClock clock;
  StageTimes times(&clock);
  StageLaps laps(&times, {});
  clock.Pass(10, 9);
  laps.End(Stage::kSum, 1, 400);
  clock.Pass(5, 4);
  laps.End(Stage::kSum, 0, 0);  // more of the same item
  clock.Pass(3, 2);
  laps.End(Stage::kEncode, 1, 400);
  EXPECT_EQ(times.Read()[Stage::kSum], (StageCount{1, 400, 15, 13}));
  EXPECT_EQ(times.Read()[Stage::kEncode], (StageCount{1, 400, 3, 2}));
}

TEST(StageTimes, AreNotNeeded) {
  StageSpan().End(Stage::kSend, 1, {}).End(Stage::kWait, 1, {});
  StageSpan(nullptr).End(Stage::kSend, 1, {});
  StageLaps(nullptr, {}).End(Stage::kSum, 1, 1);
}

TEST(StageClock, OfTheMachineCountsWhatThisThreadWorksAndNothingWhereThatIsLeftOut) {
  const StageClock& all = *MachineStageClock(/*with_cpu=*/true);
  const int64_t cpu = all.ThreadCpuNs();
  const int64_t wall = all.WallNs();
  while (all.ThreadCpuNs() == cpu) continue;
  EXPECT_GT(all.WallNs(), wall);
  const StageClock& wall_alone = *MachineStageClock(/*with_cpu=*/false);
  EXPECT_GE(wall_alone.WallNs(), wall);
  EXPECT_EQ(wall_alone.ThreadCpuNs(), 0);
}

TEST(StageClock, IsChosenByASetting) {
  EXPECT_EQ(*ParseStageTimes("cpu"), MachineStageClock(true));
  EXPECT_EQ(*ParseStageTimes("wall"), MachineStageClock(false));
  EXPECT_EQ(*ParseStageTimes("off"), nullptr);
  EXPECT_EQ(ParseStageTimes("yes").status().message(),
            "setting stage-times is 'yes': expected cpu, wall or off");
}

TEST(Stage, HasANameAndANumberOfItsOwn) {
  std::set<std::string_view> names;
  for (uint32_t number = 0; number < kNumStages; ++number) {
    ASSERT_TRUE(FindStage(number).has_value());
    EXPECT_EQ(static_cast<uint32_t>(*FindStage(number)), number);
    names.insert(StageName(*FindStage(number)));
  }
  EXPECT_EQ(names.size(), kNumStages);
  EXPECT_EQ(FindStage(kNumStages), std::nullopt);
}

TEST(AddStages, ReportsThoseOfTheRoleByName) {
  ManualStageClock clock;
  StageTimes times(&clock);
  times.Add(Stage::kHold, {.items = 2, .bytes = 8, .wall_ns = 30}, {}, 0);
  times.Add(Stage::kEncode, {.items = 1, .bytes = 4, .wall_ns = 3, .cpu_ns = 2}, {}, 0);
  Registry registry;
  auto sources = AddStages(ServerStages(), &times, &registry);
  EXPECT_EQ(ToJson(registry.Collect()),
            R"({"stages":{"queue":{"items":0,"bytes":0,"wall_ns":0,"cpu_ns":0},)"
            R"("hold":{"items":2,"bytes":8,"wall_ns":30,"cpu_ns":0},)"
            R"("sum":{"items":0,"bytes":0,"wall_ns":0,"cpu_ns":0},)"
            R"("rule":{"items":0,"bytes":0,"wall_ns":0,"cpu_ns":0},)"
            R"("encode":{"items":1,"bytes":4,"wall_ns":3,"cpu_ns":2},)"
            R"("reply":{"items":0,"bytes":0,"wall_ns":0,"cpu_ns":0}}})");
  EXPECT_EQ(ToText(registry.Collect()), "") << "too much for a line";
  sources.clear();
  EXPECT_TRUE(registry.Collect().empty());
}

}  // namespace
}  // namespace bdn
