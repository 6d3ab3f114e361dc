#include "scheduler/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bdn {
namespace {

using ::testing::HasSubstr;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

NodeProgress Progress(Step step, uint64_t encode_ns) {
  NodeProgress progress{.step = step, .ended = step};
  progress.stages[Stage::kEncode].wall_ns = encode_ns;
  return progress;
}

uint64_t EncodeOf(const History::Window& window) {
  return window.wall_ns[static_cast<size_t>(Stage::kEncode)];
}

TEST(History, JoinsGroupsOfAllSizesIntoAsManyAsANodeHas) {
  History history(3);
  std::vector<QualityGroup> small, large;
  for (uint32_t i = 0; i < kMostQualityGroups; ++i) {
    small.push_back({2 * i, 2 * i + 1, {1, 0, true, {1, 0.5, 1, 1}}});
    large.push_back({8 * i, 8 * i + 7, {1, 1, true, {2, 0.25, 0.5, i * 1.0}}});
  }
  history.Measured(1, Role::kWorker, small);
  history.Measured(2, Role::kWorker, large);
  history.Measured(3, Role::kServer, small);
  const auto pushes = history.Quality(Role::kWorker);
  ASSERT_EQ(pushes.size(), kMostQualityGroups);
  EXPECT_EQ(pushes[7].name(), "56-63");
  EXPECT_EQ(pushes[7].figures.encodings, 5u);
  EXPECT_EQ(pushes[7].figures.nonfinite, 1u);
  EXPECT_EQ(pushes[7].figures.worst.ratio, 0.5);
  EXPECT_EQ(pushes[7].figures.worst.cosine, 0.5);
  EXPECT_EQ(pushes[7].figures.worst.owed_steps, 7);
  EXPECT_EQ(pushes[8].figures.encodings, 1u);
  EXPECT_EQ(history.Quality(Role::kServer).size(), kMostQualityGroups);
  EXPECT_EQ(History(1).Quality(Role::kServer).size(), 0u);
}

TEST(History, KnowsNoPaceBeforeASecondHeartbeat) {
  History history(1);
  EXPECT_FALSE(history.StepsPerSecond().has_value());
  history.Progressed(At(0), 1, Role::kWorker, Progress(5, 0));
  EXPECT_FALSE(history.StepsPerSecond().has_value());
  history.Progressed(At(2), 1, Role::kWorker, Progress(9, 0));
  EXPECT_DOUBLE_EQ(*history.StepsPerSecond(), 2);
}

TEST(History, ThePaceIsOfTheLastTenSecondsAndOfWorkers) {
  History history(3);
  for (int second = 0; second <= 100; ++second) {
    const Step step = second < 50 ? second : 50 + 10 * (second - 50);
    history.Progressed(At(second), 1, Role::kWorker, Progress(step, 0));
    history.Progressed(At(second), 2, Role::kWorker, Progress(step / 2, 0));  // a straggler
    history.Progressed(At(second), 3, Role::kServer, Progress(1000000, 0));
  }
  EXPECT_DOUBLE_EQ(*history.StepsPerSecond(), 10);
  for (int second = 101; second <= 120; ++second) {
    history.Progressed(At(second), 1, Role::kWorker, Progress(550, 0));
  }
  EXPECT_EQ(*history.StepsPerSecond(), 0) << "it has stopped";
}

TEST(History, HeartbeatsInABurstDoNotPushThePaceOut) {
  History history(1);
  for (int i = 0; i <= 100000; ++i) {
    history.Progressed(At(i / 1000.0), 1, Role::kWorker, Progress(static_cast<Step>(i), 0));
  }
  EXPECT_NEAR(*history.StepsPerSecond(), 1000, 1e-6);
}

TEST(History, AWindowIsTheLastHundredStepsOrSo) {
  History history(2);
  // The first 500 steps take 1 us each, and then 3.
  uint64_t encode_ns = 0;
  for (Step step = 1; step <= 1000; ++step) {
    encode_ns += step <= 500 ? 1000 : 3000;
    history.Progressed(At(static_cast<double>(step)), 7, Role::kWorker, Progress(step, encode_ns));
  }
  ASSERT_EQ(history.Windows().size(), 1u);
  const History::Window window = history.Windows()[0];
  EXPECT_EQ(window.node, 7u);
  EXPECT_GE(window.steps, History::kWindowSteps);
  EXPECT_LE(window.steps, History::kWindowSteps * 5 / 4);
  EXPECT_EQ(EncodeOf(window), 3000 * window.steps);
}

TEST(History, AWindowCoversWhatTwoFarHeartbeatsTell) {
  History history(1);
  history.Progressed(At(0), 7, Role::kServer, Progress(0, 0));
  EXPECT_TRUE(history.Windows().empty()) << "no step has ended";
  history.Progressed(At(1), 7, Role::kServer, Progress(5000, 10000));
  history.Progressed(At(2), 7, Role::kServer, Progress(10000, 60000));
  ASSERT_EQ(history.Windows().size(), 1u);
  EXPECT_EQ(history.Windows()[0].steps, 5000u);
  EXPECT_EQ(EncodeOf(history.Windows()[0]), 50000u);
}

TEST(History, ANodeWhoseCountsGoBackBeginsAnew) {
  History history(1);
  history.Progressed(At(0), 7, Role::kWorker, Progress(10, 1000));
  history.Progressed(At(1), 7, Role::kWorker, Progress(20, 500));
  EXPECT_TRUE(history.Windows().empty());
  history.Progressed(At(2), 7, Role::kWorker, Progress(15, 600));
  EXPECT_TRUE(history.Windows().empty());
  history.Progressed(At(3), 7, Role::kWorker, Progress(16, 700));
  ASSERT_EQ(history.Windows().size(), 1u);
  EXPECT_EQ(EncodeOf(history.Windows()[0]), 100u);
}

TEST(History, AJobThatGoesOnFromACheckpointHasTheRatesOfItsOwnSteps) {
  History history(1);
  for (int second = 0; second <= 5; ++second) {
    const uint64_t ended = static_cast<uint64_t>(4 * second);
    NodeProgress progress{.step = ended == 0 ? 0 : 10000 + ended, .ended = ended};
    progress.stages[Stage::kEncode].wall_ns = 1000 * ended;
    history.Progressed(At(second), 7, Role::kWorker, progress);
  }
  EXPECT_DOUBLE_EQ(*history.StepsPerSecond(), 4);
  ASSERT_EQ(history.Windows().size(), 1u);
  EXPECT_EQ(history.Windows()[0].steps, 20u);
  EXPECT_EQ(EncodeOf(history.Windows()[0]), 20000u);
}

TEST(History, KeepsTheLatestEventsAndTheBeginningOfTheirTexts) {
  History history(1);
  for (size_t i = 0; i < History::kMostEvents + 5; ++i) {
    history.Happened(At(static_cast<double>(i)), "joined", std::string(i == 204 ? 100000 : 3, 'x'));
  }
  ASSERT_EQ(history.events().size(), History::kMostEvents);
  EXPECT_EQ(history.events().front().when, At(5));
  EXPECT_LE(history.events().back().text.size(), History::kMostTextBytes + 4);
}

TEST(History, NamesBeyondTheMostAreLeftOutAndSaidOnce) {
  History history(1);
  for (size_t i = 0; i < kMostReportNames + 9; ++i) {
    history.Reported(At(1), {{"loss" + std::to_string(i), 0, 1.0}});
  }
  history.Reported(At(2), {{"loss0", 1, 2.0}});
  EXPECT_EQ(history.curves().size(), kMostReportNames);
  EXPECT_EQ(history.curves().at("loss0").Points().size(), 2u);
  ASSERT_EQ(history.events().size(), 1u);
  EXPECT_THAT(history.events()[0].text, HasSubstr("'loss64'"));
}

}  // namespace
}  // namespace bdn
