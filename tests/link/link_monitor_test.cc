#include "link/link_monitor.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

KeyEntry EntryOf(uint32_t tensor, uint64_t key) {
  return {.key = Key{key}, .segments = {{.tensor = tensor, .elements = 4}}, .elements = 4};
}

std::vector<Step> DueUpTo(const LinkMonitor& monitor, Step last) {
  std::vector<Step> due;
  for (Step step = 1; step <= last; ++step) {
    if (monitor.IsDue(step)) due.push_back(step);
  }
  return due;
}

TEST(LinkMonitor, MeasuresFirstStepsOftenAndLaterOnesSeldom) {
  QualityWatch watch{.options = {.every = 16}, .table = {}};
  LinkMonitor monitor;
  monitor.Begin(&watch, EntryOf(0, 3), "w");
  EXPECT_EQ(DueUpTo(monitor, 60), (std::vector<Step>{1, 2, 4, 8, 19, 35, 51}));
}

TEST(LinkMonitor, MeasuresKeysInDifferentSteps) {
  QualityWatch watch{.options = {.every = 4}, .table = {}};
  for (uint64_t key = 0; key < 4; ++key) {
    LinkMonitor monitor;
    monitor.Begin(&watch, EntryOf(0, key), "w");
    EXPECT_TRUE(monitor.IsDue(100 + key));
    EXPECT_FALSE(monitor.IsDue(101 + key));
  }
}

TEST(LinkMonitor, DoesNothingUntilItBeginsOrIfItMayNot) {
  LinkMonitor monitor;
  EXPECT_FALSE(monitor.is_on());
  monitor.CountEncoding(true);
  monitor.Begin(nullptr, EntryOf(0, 0), "w");
  EXPECT_FALSE(monitor.is_on());
  QualityWatch off{.options = {.every = 0}, .table = {}};
  monitor.Begin(&off, EntryOf(0, 0), "w");
  EXPECT_FALSE(monitor.is_on());
  EXPECT_TRUE(DueUpTo(monitor, 300).empty());
  EXPECT_TRUE(off.table.Tensors().empty());
}

TEST(LinkMonitor, NotesWhatItIsTold) {
  QualityWatch watch{.options = {.every = 1}, .table = {}};
  LinkMonitor monitor;
  monitor.Begin(&watch, EntryOf(5, 0), "w");
  monitor.CountEncoding(true);
  monitor.CountEncoding(false);
  monitor.Note(3, {.input = 4, .offered = 16, .decoded = 12, .residual = 4}, "w");
  const auto groups = watch.table.Groups();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].name(), "5");
  EXPECT_EQ(groups[0].figures.encodings, 2u);
  EXPECT_EQ(groups[0].figures.worst.step, 3u);
  EXPECT_EQ(groups[0].figures.worst.ratio, 0.5);
  EXPECT_EQ(groups[0].figures.worst.owed_steps, 1);
}

// ---- The guard

// Returns the quality of a link that is given 1 and leaves out so much.
LinkQuality Leaves(double ratio, double growth = 1) {
  return {.input = 1, .offered = growth, .decoded = 1, .residual = growth * ratio * ratio};
}

struct GuardRig {
  explicit GuardRig(QualityGuard guard, uint64_t every = 64)
      : watch{.options = {.every = every, .guard = guard}, .what = "push", .table = {}} {
    monitor.Begin(&watch, EntryOf(0, 0), "w");
    monitor.CountEncoding(true);
  }
  // Notes what every step that is due leaves out, from step 1 on; where the guard had acted, or 0.
  template <typename Quality>
  Step RunUntilActed(Step last, const Quality& quality_of) {
    for (Step step = 1; step <= last; ++step) {
      if (!monitor.IsDue(step)) continue;
      monitor.Note(step, quality_of(step), "w");
      if (!said().empty()) return step;
    }
    return 0;
  }
  std::string_view said() const { return watch.table.Groups()[0].figures.guard; }

  QualityWatch watch;
  LinkMonitor monitor;
};

// In energy; of so many steps that it does not overflow.
double Growth(Step step) { return std::pow(16.0, static_cast<double>(step)); }

TEST(LinkMonitorGuard, ActsOnceALinkLeavesOutMoreThanItIsGivenAgainAndAgain) {
  GuardRig rig(QualityGuard::kFallBack);
  // All steps from the first that is over: eight in a row.
  EXPECT_EQ(rig.RunUntilActed(1000, [](Step step) { return Leaves(1.5, Growth(step)); }), 8u);
  EXPECT_TRUE(rig.monitor.WantsUncompressed());
  EXPECT_EQ(rig.said(), "warned");
  rig.monitor.NoteUncompressed();
  EXPECT_EQ(rig.said(), "fallen back");
}

TEST(LinkMonitorGuard, OnlySaysSoWhereItIsToWarn) {
  GuardRig rig(QualityGuard::kWarn);
  EXPECT_EQ(rig.RunUntilActed(1000, [](Step step) { return Leaves(1.5, Growth(step)); }), 8u);
  EXPECT_FALSE(rig.monitor.WantsUncompressed());
  EXPECT_FALSE(rig.monitor.IsDue(9)) << "it has said it, and goes back to measuring seldom";
}

TEST(LinkMonitorGuard, DoesNothingWhereItIsOff) {
  GuardRig rig(QualityGuard::kOff);
  EXPECT_EQ(rig.RunUntilActed(1000, [](Step step) { return Leaves(1.5, Growth(step)); }), 0u);
}

TEST(LinkMonitorGuard, IsNeverMovedByALinkThatLeavesOutLessThanItIsGiven) {
  GuardRig rig(QualityGuard::kFallBack, 1);
  EXPECT_EQ(rig.RunUntilActed(200, [](Step step) { return Leaves(0.999, Growth(step)); }), 0u);
}

TEST(LinkMonitorGuard, BeginsAgainAfterAStepThatIsWell) {
  GuardRig rig(QualityGuard::kFallBack, 1);
  const auto quality = [](Step step) { return Leaves(step % 8 == 0 ? 0.5 : 1.5, Growth(step)); };
  EXPECT_EQ(rig.RunUntilActed(200, quality), 0u);
}

TEST(LinkMonitorGuard, LeavesALinkAloneThatOwesATolerableNumberOfSteps) {
  GuardRig rig(QualityGuard::kFallBack, 1);
  const auto quality = [](Step step) {
    const double owed = std::min(900.0, static_cast<double>(step) * 50);
    return LinkQuality{
        .input = 1, .offered = owed * owed / 1.01, .decoded = 1, .residual = owed * owed};
  };
  EXPECT_EQ(rig.RunUntilActed(1000, quality), 0u);
}

TEST(LinkMonitorGuard, ActsOnSlowGrowthOnceThatIsFar) {
  GuardRig rig(QualityGuard::kFallBack, 1);
  const auto quality = [](Step step) {
    const double owed = std::pow(1.05, static_cast<double>(step));
    return LinkQuality{
        .input = 1, .offered = owed * owed / 1.01, .decoded = 1, .residual = owed * owed};
  };
  EXPECT_EQ(rig.RunUntilActed(1000, quality), 142u);  // 1.05^142 is the first above 1000.
}

TEST(LinkMonitorGuard, IsNotMovedByAResidualThatShrinks) {
  GuardRig rig(QualityGuard::kFallBack, 1);
  EXPECT_EQ(rig.RunUntilActed(1000, [](Step step) { return Leaves(1.5, 1 / Growth(step)); }), 0u);
}

TEST(LinkMonitorGuard, TakesWhatOverflowsForGrowth) {
  GuardRig rig(QualityGuard::kFallBack, 1);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto quality = [](Step) {
    return LinkQuality{.input = 1, .offered = kInfinity, .decoded = 1, .residual = kInfinity};
  };
  EXPECT_EQ(rig.RunUntilActed(1000, quality), 8u);
}

TEST(WorstOf, NamesTheSegmentOfTheLargestRatio) {
  WorstOf worst;
  worst.Add(0, Leaves(0.5));
  worst.Add(1, Leaves(2));
  worst.Add(2, Leaves(1));
  EXPECT_EQ(worst.segment, 1u);
  EXPECT_DOUBLE_EQ(worst.all.residual, 0.25 + 4 + 1);
  worst.Add(3, {.input = 1, .offered = 1, .decoded = 1, .residual = std::nan("")});
  worst.Add(4, Leaves(9));
  EXPECT_EQ(worst.segment, 3u);
}

// ---- Settings

absl::StatusOr<QualityOptions> Read(const std::vector<std::string>& flags) {
  constexpr Setting kSettings[] = {{"quality-every", "128", ""}, {"quality-guard", "warn", ""}};
  const auto config = Config::Load(kSettings, flags, {});
  return config.ok() ? ReadQualityOptions(*config) : config.status();
}

TEST(QualityOptions, AreReadAndRefused) {
  EXPECT_EQ(Read({})->every, 128u);
  EXPECT_EQ(Read({})->guard, QualityGuard::kWarn);
  EXPECT_EQ(Read({"--quality-guard=off"})->guard, QualityGuard::kOff);
  EXPECT_EQ(Read({"--quality-guard=fall-back", "--quality-every=3"})->guard,
            QualityGuard::kFallBack);
  EXPECT_THAT(std::string(Read({"--quality-guard=on"}).status().message()),
              testing::HasSubstr("expected off, warn or fall-back"));
  EXPECT_THAT(std::string(Read({"--quality-every=-1"}).status().message()),
              testing::HasSubstr("quality-every"));
  EXPECT_THAT(
      std::string(Read({"--quality-guard=fall-back", "--quality-every=0"}).status().message()),
      testing::HasSubstr("measures nothing"));
}

}  // namespace
}  // namespace bdn
