#include "common/link/link_monitor.h"

#include <vector>

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
  monitor.Note(3, {.input = 4, .offered = 16, .decoded = 12, .residual = 4});
  const auto groups = watch.table.Groups();
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].name, "5");
  EXPECT_EQ(groups[0].figures.encodings, 2u);
  EXPECT_EQ(groups[0].figures.worst.step, 3u);
  EXPECT_EQ(groups[0].figures.worst.ratio, 0.5);
  EXPECT_EQ(groups[0].figures.worst.owed_steps, 1);
}

}  // namespace
}  // namespace bdn
