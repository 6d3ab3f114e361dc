#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "common/wire/packed_ids.h"
#include "common/wire/row_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rows/row_cells.h"
#include "server/rows/row_table.h"

// What becomes of the rows of a table that admits them, bounds them, or removes old ones: the same
// in however many buckets the table lies, and as a plain model of the rules says.

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr size_t kWidth = 3;
using Ids = std::vector<uint64_t>;
using Record = std::vector<std::byte>;
using List = std::map<uint64_t, Record>;

// A table in some buckets, each of which a server could hold.
class Buckets {
 public:
  Buckets(const std::string& spec, uint32_t buckets)
      : spec_(*TableSpec::Parse(spec)), rule_(MakeRowRule(*RowRuleSpec::Parse("adagrad"))) {
    for (uint32_t i = 0; i < buckets; ++i) {
      tables_.emplace_back(InitialValues{.spec = spec_, .run_seed = 5, .name_hash = 9}, rule_.get(),
                           kWidth, kWidth);
    }
  }

  // Makes a step with a gradient of each of these ids; returns the number of rows removed.
  size_t Step(const Ids& ids) {
    std::vector<RowSums> sums(tables_.size(), RowSums(kWidth));
    for (const uint64_t id : ids) {
      std::fill_n(sums[BucketOf(id, size())].Of(id), kWidth, 0.25f + static_cast<float>(id % 7));
    }
    size_t removed = 0;
    for (size_t i = 0; i < tables_.size(); ++i) {
      removed += tables_[i].Take(tables_[i].Step(&sums[i], 0.5f));
    }
    return removed;
  }
  uint32_t size() const { return static_cast<uint32_t>(tables_.size()); }
  std::vector<RowTable>& tables() { return tables_; }
  RowTable& Of(uint64_t id) { return tables_[BucketOf(id, size())]; }
  std::vector<float> Read(uint64_t id) {
    std::vector<float> row(kWidth);
    Of(id).Read(id, row);
    return row;
  }
  uint64_t updates() const { return tables_[0].updates(); }
  uint64_t complete_since() const {
    uint64_t since = 0;
    for (const RowTable& table : tables_) since = std::max(since, table.complete_since());
    return since;
  }
  // The records of a list that changed after so many updates.
  List All(RowList which, uint64_t since = 0) const {
    List all;
    for (const RowTable& table : tables_) {
      const size_t bytes = ListedBytes(which, table.record_bytes());
      uint64_t place = 0;
      do {
        const RowTable::Scanned piece = table.Scan(which, place, since, /*most=*/50);
        for (const auto& [id, record] : piece.records) {
          const auto* const first = reinterpret_cast<const std::byte*>(record);
          EXPECT_TRUE(all.emplace(id, Record(first, first + bytes)).second) << id;
        }
        place = piece.next;
      } while (place != 0);
    }
    return all;
  }
  // Takes what another table has changed since some updates of it, as a load of a save does.
  void Load(const Buckets& other, uint64_t since) {
    for (const RowList which : {RowList::kRows, RowList::kRemoved, RowList::kCandidates}) {
      for (const auto& [id, record] : other.All(which, since)) {
        EXPECT_TRUE(Of(id).CheckRecord(which, record, other.updates()).ok());
        Of(id).SetRecord(which, id, record);
      }
    }
    for (RowTable& table : tables_) table.set_updates(other.updates());
  }
  void Clear(uint64_t updates) {
    for (RowTable& table : tables_) table.Clear(updates);
  }

 private:
  TableSpec spec_;
  std::shared_ptr<const RowRule> rule_;
  std::vector<RowTable> tables_;
};

// The ids of a step: popular ones, and many that hardly come again.
Ids Touched(uint32_t step) {
  std::mt19937_64 random(step);
  std::set<uint64_t> ids;
  for (int i = 0; i < 40; ++i) {
    const auto share = static_cast<double>(random() % 10000) / 10000;
    ids.insert(static_cast<uint64_t>(share * share * share * 4000));
  }
  Ids shuffled(ids.begin(), ids.end());
  std::shuffle(shuffled.begin(), shuffled.end(), random);
  return shuffled;
}

const char* const kSpecs[] = {
    "table(init=uniform,value=1,admit=3)",
    "table(init=uniform,value=1,ttl=30)",
    "table(init=uniform,value=1,max_rows=1024,evict=lru)",
    "table(init=uniform,value=1,max_rows=1024,evict=lfu)",
    "table(init=normal,value=1,admit=2,max_rows=1024,evict=lfu,ttl=50)",
    "table(init=normal,value=1,admit=2,max_rows=1100,evict=lru,ttl=7)",
};
constexpr uint32_t kSteps = 120;

// The rules in plain words: all ids in one map, sorted wherever the lowest are looked for.
class Model {
 public:
  explicit Model(const std::string& spec) : spec_(*TableSpec::Parse(spec)) {}

  void Step(const Ids& ids) {
    ++now_;
    for (const uint64_t id : ids) {
      const uint64_t pushed = candidates_.contains(id) ? candidates_.at(id).updates + 1u : 1;
      if (!rows_.contains(id) && pushed < spec_.admit) {
        candidates_[id] = {static_cast<uint32_t>(pushed), now_};
        continue;
      }
      candidates_.erase(id);
      rows_[id] = {rows_[id].updates + 1, now_};
    }
    const uint64_t each = std::min<uint64_t>(spec_.ttl, 1000);
    if (each != 0 && now_ % each == 0) {
      for (auto* list : {&rows_, &candidates_}) {
        std::erase_if(*list, [&](const auto& of) { return now_ - of.second.changed >= spec_.ttl; });
      }
    }
    if (spec_.max_rows == 0) return;
    GiveUp(&rows_, spec_.evict == TableSpec::Evict::kLfu);
    GiveUp(&candidates_, false);
  }
  std::set<uint64_t> rows() const { return IdsOf(rows_); }
  std::set<uint64_t> candidates() const { return IdsOf(candidates_); }

 private:
  using Counts = std::map<uint64_t, RowCounters>;
  static std::set<uint64_t> IdsOf(const Counts& list) {
    std::set<uint64_t> ids;
    for (const auto& of : list) ids.insert(of.first);
    return ids;
  }
  void GiveUp(Counts* list, bool by_updates) const {
    const uint32_t cells = spec_.Cells();
    const size_t most = spec_.max_rows / cells;
    for (uint32_t cell = 0; cell < cells; ++cell) {
      std::vector<std::tuple<uint32_t, uint32_t, uint64_t>> scores;
      for (const auto& [id, of] : *list) {
        if (BucketOf(id, cells) != cell) continue;
        scores.emplace_back(by_updates ? of.updates : of.changed,
                            by_updates ? of.changed : of.updates, id);
      }
      if (scores.size() <= most) continue;
      std::ranges::sort(scores);
      scores.resize(scores.size() - most * 9 / 10);
      for (const auto& score : scores) list->erase(std::get<2>(score));
    }
  }

  const TableSpec spec_;
  Counts rows_, candidates_;
  uint32_t now_ = 0;
};

std::set<uint64_t> IdsOf(const List& list) {
  std::set<uint64_t> ids;
  for (const auto& of : list) ids.insert(of.first);
  return ids;
}

TEST(RowLimits, AreWhatAPlainModelSaysAfterEachStep) {
  for (const char* const spec : kSpecs) {
    Buckets table(spec, 4);
    Model model(spec);
    for (uint32_t step = 1; step <= kSteps; ++step) {
      table.Step(Touched(step));
      model.Step(Touched(step));
      ASSERT_EQ(IdsOf(table.All(RowList::kRows)), model.rows()) << spec << " step " << step;
      ASSERT_EQ(IdsOf(table.All(RowList::kCandidates)), model.candidates()) << spec;
    }
  }
}

TEST(RowLimits, HaveOneResultForAllNumbersOfBucketsAndOrdersOfIds) {
  for (const char* const spec : kSpecs) {
    Buckets one(spec, 1), four(spec, 4), sixteen(spec, 16);
    for (uint32_t step = 1; step <= kSteps; ++step) {
      Ids ids = Touched(step);
      one.Step(ids);
      std::ranges::reverse(ids);
      four.Step(ids);
      std::ranges::sort(ids);
      sixteen.Step(ids);
    }
    for (const RowList which : {RowList::kRows, RowList::kCandidates}) {
      EXPECT_EQ(four.All(which), one.All(which)) << spec;
      EXPECT_EQ(sixteen.All(which), one.All(which)) << spec;
    }
    EXPECT_FALSE(one.All(RowList::kRows).empty()) << spec;
  }
}

TEST(RowLimits, GoOnFromASaveHalfWayAsIfNothingHadBeen) {
  for (const char* const spec : kSpecs) {
    Buckets whole(spec, 4), half(spec, 8);
    for (uint32_t step = 1; step <= kSteps / 2; ++step) {
      whole.Step(Touched(step));
      half.Step(Touched(step));
    }
    Buckets loaded(spec, 2);
    loaded.Step({1, 2, 3});  // is forgotten
    loaded.Clear(half.updates());
    loaded.Load(half, 0);
    for (uint32_t step = kSteps / 2 + 1; step <= kSteps; ++step) {
      whole.Step(Touched(step));
      loaded.Step(Touched(step));
    }
    for (const RowList which : {RowList::kRows, RowList::kCandidates}) {
      EXPECT_EQ(loaded.All(which), whole.All(which)) << spec;
    }
  }
}

TEST(RowLimits, AreKeptByAChainOfSavesOfWhatChanged) {
  for (const char* const spec : kSpecs) {
    Buckets table(spec, 4), loaded(spec, 16);
    loaded.Clear(0);
    uint64_t saved = 0;
    for (uint32_t step = 1; step <= kSteps; ++step) {
      table.Step(Touched(step));
      if (step % 17 != 0) continue;
      ASSERT_LE(table.complete_since(), saved) << spec;
      loaded.Load(table, saved);
      saved = table.updates();
      for (const RowList which : {RowList::kRows, RowList::kCandidates}) {
        ASSERT_EQ(loaded.All(which), table.All(which)) << spec << " step " << step;
      }
    }
  }
}

TEST(RowLimits, ARemovedRowHasItsInitialValueAndComesAgainAsANewOne) {
  for (const char* const spec : kSpecs) {
    Buckets table(spec, 4), fresh(spec, 1);
    std::set<uint64_t> once;
    size_t removed = 0;
    for (uint32_t step = 1; step <= kSteps; ++step) {
      removed += table.Step(Touched(step));
      const std::set<uint64_t> rows = IdsOf(table.All(RowList::kRows));
      once.insert(rows.begin(), rows.end());
    }
    size_t gone = 0;
    for (const uint64_t id : once) {
      if (table.All(RowList::kRows).contains(id)) continue;
      ++gone;
      EXPECT_EQ(table.Read(id), fresh.Read(id)) << spec;
      if (gone > 20) break;
    }
    const bool removes = std::string(spec).find("max_rows") != std::string::npos ||
                         std::string(spec).find("ttl") != std::string::npos;
    EXPECT_EQ(gone > 0, removes) << spec;
    EXPECT_EQ(removed > 0, removes) << spec;
  }
}

TEST(RowLimits, TellWhatIsNoMoreSinceAnyUpdateThatIsNotForgotten) {
  for (const char* const spec : kSpecs) {
    Buckets table(spec, 4);
    std::map<uint64_t, std::set<uint64_t>> rows_at;
    for (uint32_t step = 1; step <= kSteps; ++step) {
      table.Step(Touched(step));
      rows_at[step] = IdsOf(table.All(RowList::kRows));
    }
    const std::set<uint64_t> rows = rows_at.at(kSteps);
    for (const auto& [since, before] : rows_at) {
      if (since < table.complete_since()) continue;
      const List removed = table.All(RowList::kRemoved, since);
      for (const uint64_t id : before) {
        const bool is_told = removed.contains(id) && CountersOf(removed.at(id)).updates == 1;
        EXPECT_EQ(is_told, !rows.contains(id)) << spec << " id " << id << " since " << since;
      }
    }
  }
}

TEST(RowLimits, KeepNoMoreRemovedIdsThanAreOfUse) {
  Buckets table("table(ttl=1)", 1);
  for (uint64_t step = 0; step < 3000; ++step) {
    table.Step({5 * step, 5 * step + 1, 5 * step + 2});
    ASSERT_LE(table.All(RowList::kRemoved).size(), 1024u);
  }
  EXPECT_GT(table.complete_since(), 2000u);
  EXPECT_LT(table.complete_since(), 3000u);
  // Those that are kept are all that were removed since.
  EXPECT_EQ(table.All(RowList::kRemoved, 2900).size(), 3 * 100u);
}

TEST(RowLimits, HoldNoMoreThanTheBoundAndMostOfIt) {
  Buckets table("table(max_rows=1024,evict=lru)", 4);
  for (uint64_t step = 0; step < 100; ++step) {
    Ids ids;
    for (uint64_t i = 0; i < 100; ++i) ids.push_back(100 * step + i);
    table.Step(ids);
    ASSERT_LE(table.All(RowList::kRows).size(), 1024u);
  }
  EXPECT_GT(table.All(RowList::kRows).size(), 900u);
}

TEST(RowLimits, AdmissionDropsGradientsAndTakesLittleMemory) {
  Buckets table("table(admit=3)", 1);
  RowTable& only = table.tables()[0];
  for (int i = 0; i < 2; ++i) {
    table.Step({7});
    EXPECT_THAT(table.Read(7), ElementsAre(0, 0, 0));
    EXPECT_EQ(only.rows(), 0u);
    EXPECT_EQ(only.candidates(), 1u);
  }
  table.Step({7});
  EXPECT_LT(table.Read(7)[0], 0.0f);
  EXPECT_EQ(only.candidates(), 0u);
  // The moments are those of one update, and the counters say so.
  EXPECT_EQ(CountersOf(table.All(RowList::kRows).at(7)).updates, 1u);
  Ids many(10000);
  for (uint64_t i = 0; i < many.size(); ++i) many[i] = 100 + i;
  const size_t before = only.bytes();
  table.Step(many);
  EXPECT_LT(only.bytes() - before, 10000 * 40u);
}

TEST(RowLimits, TheMemoryOfRemovedRowsIsUsedAgain) {
  Buckets table("table(ttl=2)", 1);
  RowTable& only = table.tables()[0];
  for (uint64_t step = 0; step < 10; ++step) {
    Ids ids(640);
    for (uint64_t i = 0; i < ids.size(); ++i) ids[i] = 1000 * step + i;
    table.Step(ids);
  }
  const size_t before = only.bytes();
  for (uint64_t step = 10; step < 200; ++step) {
    Ids ids(640);
    for (uint64_t i = 0; i < ids.size(); ++i) ids[i] = 1000 * step + i;
    table.Step(ids);
  }
  EXPECT_LE(only.bytes(), before + before / 4);
  EXPECT_EQ(only.BytesOfNew(64, 0), 0u);
  EXPECT_LE(only.places(RowList::kRows), 4 * 640u);
  EXPECT_GT(only.BytesOfNew(100000, 0), 90000u * only.record_bytes());
}

TEST(RowLimits, RecordsThatCannotBeAreRefused) {
  Buckets table("table(admit=3)", 1);
  const RowTable& only = table.tables()[0];
  const auto record = [](uint32_t updates, uint32_t changed) {
    const RowCounters counters{updates, changed};
    Record bytes(sizeof(counters));
    std::memcpy(bytes.data(), &counters, sizeof(counters));
    return bytes;
  };
  EXPECT_TRUE(only.CheckRecord(RowList::kCandidates, record(2, 9), 9).ok());
  EXPECT_FALSE(only.CheckRecord(RowList::kCandidates, record(10, 9), 9).ok());
  EXPECT_FALSE(only.CheckRecord(RowList::kCandidates, record(2, 11), 9).ok());
  EXPECT_TRUE(only.CheckRecord(RowList::kRemoved, record(1, 9), 9).ok());
  EXPECT_FALSE(only.CheckRecord(RowList::kRemoved, record(2, 9), 9).ok());
}

TEST(RowLimits, ACopyOfATableIsAnotherTable) {
  Buckets table("table(admit=2,max_rows=64,evict=lru)", 1);
  for (uint32_t step = 1; step <= kSteps; ++step) table.Step(Touched(step));
  Buckets copy = table;
  const List before = table.All(RowList::kRows);
  copy.Step(Touched(kSteps + 1));
  EXPECT_EQ(table.All(RowList::kRows), before);
  table.Step(Touched(kSteps + 1));
  EXPECT_EQ(table.All(RowList::kRows), copy.All(RowList::kRows));
}

TEST(RowCells, TellEachFullCellOnceAndOnlyWhileItIsFull) {
  RowCells cells(2, 2);
  Ids of_first, of_second;
  for (uint64_t id = 0; of_first.size() < 4 || of_second.size() < 4; ++id) {
    (BucketOf(id, 2) == 0 ? of_first : of_second).push_back(id);
  }
  for (size_t i = 0; i < 4; ++i) cells.Add(of_first[i]);
  EXPECT_THAT(cells.TakeFull(), ElementsAre(0));
  EXPECT_THAT(cells.TakeFull(), IsEmpty());
  for (size_t i = 0; i < 3; ++i) cells.Add(of_second[i]);
  cells.Remove(of_second[1]);
  EXPECT_THAT(cells.TakeFull(), IsEmpty());
  EXPECT_THAT(Ids(cells.ids(1).begin(), cells.ids(1).end()),
              UnorderedElementsAre(of_second[0], of_second[2]));
  cells.Remove(of_second[0]);
  cells.Remove(of_second[2]);
  EXPECT_TRUE(cells.ids(1).empty());
  EXPECT_GT(cells.bytes(), 0u);
}

TEST(TableCells, AreAsManyAsTheBoundAllowsAndOfWholeBuckets) {
  const auto cells = [](uint64_t rows) { return TableSpec{.max_rows = rows}.Cells(); };
  EXPECT_EQ(cells(64), 1u);
  EXPECT_EQ(cells(127), 1u);
  EXPECT_EQ(cells(1000), 8u);
  EXPECT_EQ(cells(uint64_t{1} << 40), 1u << 24);
  EXPECT_TRUE(CheckMaxRows({.max_rows = 256}, "t", 4).ok());
  EXPECT_TRUE(CheckMaxRows({}, "t", 4096).ok());
  EXPECT_EQ(CheckMaxRows({.max_rows = 255}, "t", 4).message(),
            "table 't': max_rows=255 must be at least 256, which is 64 for each of the job's 4 "
            "buckets; a lower row-buckets of the scheduler allows less");
}

}  // namespace
}  // namespace bdn
