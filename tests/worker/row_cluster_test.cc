#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/normal_values.h"
#include "tests/support/pumped_network.h"
#include "tests/support/worker_rig.h"
#include "worker/error_fields.h"

// Workers and servers with tables of rows: everybody has the same bits, whatever the number of
// servers and buckets is, and whatever a network does.

namespace bdn::testing {
namespace {

using ::testing::HasSubstr;

using Floats = std::vector<float>;
using Ids = std::vector<uint64_t>;
constexpr absl::Duration kLong = absl::Minutes(1);
constexpr uint64_t kRows = 200;
constexpr size_t kWidth = 5;

void Must(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

struct Spec {
  std::string rule = "sgd";
  std::string push = "none";
  std::string pull = "none";
  std::string table = "table(rows=200,init=uniform,value=0.5)";
  size_t width = kWidth;
};

TensorDeclaration Table(const std::string& name, const Spec& spec = {}) {
  return {.name = name,
          .elements = spec.width,
          .kind = KeyKind::kRows,
          .push_spec = spec.push,
          .pull_spec = spec.pull,
          .rule = spec.rule,
          .table = spec.table};
}

Tables& TablesOf(Worker& worker) { return **worker.tables(); }

Ids AllIds(uint64_t rows = kRows) {
  Ids ids(rows);
  for (uint64_t i = 0; i < rows; ++i) ids[i] = i;
  return ids;
}

Floats Fetch(Worker& worker, uint32_t table, const Ids& ids, size_t width = kWidth) {
  Floats out(ids.size() * width, -1.0f);
  const TableRows rows{.table = table, .wanted = ids, .out = out.data()};
  const auto ticket = TablesOf(worker).Fetch({&rows, 1});
  EXPECT_TRUE(ticket.ok()) << ticket.status();
  const auto done = worker.Wait(*ticket, kLong);
  EXPECT_TRUE(done.ok()) << done.status();
  return out;
}

// The rows that a rank touches in a step, some of them more than once, in no order.
Ids Touched(int step, int rank) {
  std::mt19937 random(static_cast<uint32_t>(1000 * step + rank));
  Ids ids(60);
  for (uint64_t& id : ids) id = random() % kRows * (random() % 3 == 0 ? 1 : 0) + random() % 20;
  for (uint64_t& id : ids) id %= kRows;
  return ids;
}

Floats Gradients(int step, int rank, size_t rows) {
  return Normal(rows * kWidth, static_cast<uint32_t>(100 * step + rank));
}

// One process's SGD, in the arithmetic that the servers promise.
class Reference {
 public:
  explicit Reference(Floats start) : table_(std::move(start)) {}

  void Step(int step, int workers, float rate) {
    std::map<uint64_t, Floats> sums;
    for (int rank = 0; rank < workers; ++rank) {
      const Ids ids = Touched(step, rank);
      const Floats g = Gradients(step, rank, ids.size());
      std::map<uint64_t, Floats> own;
      for (size_t i = 0; i < ids.size(); ++i) {
        Floats& row = own[ids[i]];
        const Floats part(g.begin() + static_cast<ptrdiff_t>(i * kWidth),
                          g.begin() + static_cast<ptrdiff_t>((i + 1) * kWidth));
        if (row.empty()) {
          row = part;
        } else {
          for (size_t j = 0; j < kWidth; ++j) row[j] += part[j];
        }
      }
      for (const auto& [id, row] : own) {
        Floats& sum = sums.try_emplace(id, kWidth, 0.0f).first->second;
        for (size_t j = 0; j < kWidth; ++j) sum[j] += row[j];
      }
    }
    const auto inverse = static_cast<float>(1.0 / workers);
    for (const auto& [id, sum] : sums) {
      for (size_t j = 0; j < kWidth; ++j) table_[id * kWidth + j] -= rate * (sum[j] * inverse);
    }
  }
  const Floats& table() const { return table_; }

 private:
  Floats table_;
};

constexpr int kSteps = 12;
constexpr float kRate = 0.25f;

struct Job {
  int workers = 2;
  std::vector<std::string> flags;
  Spec spec;
  int steps = kSteps;
  Worker::Options options;
  LocalCluster::TransportFactory network;
  std::function<void(int step)> before_step = {};  // called by rank 0
  std::atomic<uint64_t>* reconnects = nullptr;     // of all workers
};

// Trains a table, and returns what every worker has at the end; rows that were wanted are compared
// with those that are fetched.
Floats Train(const Job& job, Floats* start = nullptr) {
  std::vector<Floats> ends(static_cast<size_t>(job.workers));
  ClusterRig rig(job.workers, job.flags, job.options, job.network);
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = worker.Declare({Table("t", job.spec)}, kLong);
    ASSERT_TRUE(ids.ok()) << ids.status();
    const uint32_t table = ids->front();
    if (start != nullptr && rank == 0) *start = Fetch(worker, table, AllIds());
    Must(worker.Barrier("begin", kLong));
    for (int step = 1; step <= job.steps; ++step) {
      if (rank == 0 && job.before_step != nullptr) job.before_step(step);
      const Ids touched = Touched(step, rank);
      const Floats gradients = Gradients(step, rank, touched.size());
      const Ids wanted = Touched(step + 1, rank);
      Floats out(wanted.size() * kWidth, -7.0f);
      RowsPush push{.learning_rate = kRate};
      push.tables.push_back({.table = table,
                             .ids = touched,
                             .gradients = gradients.data(),
                             .wanted = wanted,
                             .out = out.data()});
      const auto ticket = TablesOf(worker).Push(push);
      ASSERT_TRUE(ticket.ok()) << ticket.status();
      const auto done = worker.Wait(*ticket, kLong);
      ASSERT_TRUE(done.ok()) << done.status();
      EXPECT_EQ(done->step, static_cast<Step>(step));
      // No round closes without this worker, so these are the rows as the step left them.
      EXPECT_EQ(out, Fetch(worker, table, wanted)) << "step " << step << " rank " << rank;
    }
    Must(worker.Barrier("end", kLong));
    ends[static_cast<size_t>(rank)] = Fetch(worker, table, AllIds());
    if (job.reconnects != nullptr) *job.reconnects += worker.counts().requests.reconnects;
  });
  for (const Floats& end : ends) EXPECT_EQ(end, ends[0]);
  return ends[0];
}

std::vector<std::string> Flags(int servers, int buckets, int shards = 1) {
  return {"--servers=" + std::to_string(servers), "--row-buckets=" + std::to_string(buckets),
          "--shards=" + std::to_string(shards), "--seed=5"};
}

TEST(RowCluster, SgdHasTheBitsOfOneProcessWhateverTheServersAndBuckets) {
  for (const int workers : {1, 2, 4}) {
    Floats start;
    Train({.workers = workers, .flags = Flags(1, 4), .steps = 0}, &start);
    Reference reference(start);
    for (int step = 1; step <= kSteps; ++step) reference.Step(step, workers, kRate);
    EXPECT_NE(start, reference.table());
    for (const auto& flags : {Flags(1, 4), Flags(2, 16, 2), Flags(3, 64, 4), Flags(1, 1)}) {
      EXPECT_EQ(Train({.workers = workers, .flags = flags}), reference.table())
          << workers << " workers, " << flags[0] << " " << flags[1];
    }
  }
}

TEST(RowCluster, EveryRuleAndCodecHasOneResultForAllSizes) {
  const std::vector<Spec> specs = {{.rule = "adagrad", .push = "int8", .pull = "int8"},
                                   {.rule = "rowwise_adagrad", .push = "int4", .pull = "fp16"},
                                   {.rule = "adamw", .push = "onebit", .pull = "none"},
                                   {.rule = "ftrl(alpha=0.5)", .push = "twobit", .pull = "bf16"},
                                   {.rule = "sgd(decay=0.01)", .push = "int2", .pull = "int4"}};
  for (const Spec& spec : specs) {
    const Floats small = Train({.workers = 3, .flags = Flags(1, 1), .spec = spec});
    EXPECT_EQ(Train({.workers = 3, .flags = Flags(3, 32, 2), .spec = spec}), small) << spec.rule;
  }
}

// Two cells, so that such a table may be in one or two buckets.
constexpr const char* kBounded = "table(rows=200,init=uniform,value=0.5,max_rows=128,evict=";

TEST(RowCluster, WhatIsAdmittedAndRemovedIsTheSameForAllSizes) {
  const Spec admits{.rule = "adagrad", .table = "table(rows=200,init=uniform,value=0.5,admit=2)"};
  const Spec ends{.rule = "adamw", .table = "table(rows=200,init=uniform,value=0.5,admit=2,ttl=3)"};
  const Floats plain = Train({.workers = 3, .flags = Flags(1, 1), .spec = {.rule = "adagrad"}});
  for (const Spec& spec : {admits, ends}) {
    const Floats small = Train({.workers = 3, .flags = Flags(1, 1), .spec = spec});
    EXPECT_EQ(Train({.workers = 3, .flags = Flags(3, 32, 2), .spec = spec}), small) << spec.table;
    EXPECT_NE(small, plain);
  }
  std::set<Floats> results;
  for (const char* const evict : {"lru)", "lfu)", "lfu,admit=2,ttl=5)"}) {
    const Spec spec{.rule = "adagrad", .table = std::string(kBounded) + evict};
    const Floats small = Train({.workers = 3, .flags = Flags(1, 1), .spec = spec, .steps = 30});
    EXPECT_EQ(Train({.workers = 3, .flags = Flags(2, 2, 2), .spec = spec, .steps = 30}), small)
        << spec.table;
    results.insert(small);
  }
  EXPECT_EQ(results.size(), 3u);
}

TEST(RowCluster, ANetworkThatLosesFramesChangesNothingOfWhatIsAdmittedAndRemoved) {
  const Spec spec{.rule = "adagrad", .table = std::string(kBounded) + "lru,admit=2,ttl=4)"};
  const Floats quiet = Train({.workers = 3, .flags = Flags(1, 2), .spec = spec});
  PumpedNetwork network;
  network.net().Randomize(4, {.drop = 0.05, .duplicate = 0.1, .corrupt = 0.05, .reorder = true});
  Worker::Options options;
  options.probe_interval = absl::Milliseconds(3);
  EXPECT_EQ(Train({.workers = 3,
                   .flags = Flags(2, 2),
                   .spec = spec,
                   .options = options,
                   .network = network.Factory()}),
            quiet);
  network.net().ClearFaults();
}

TEST(RowCluster, ATableThatIsFullOfRowsThatStayFailsTheStepWithItsName) {
  ClusterRig rig(1, Flags(1, 1));
  Worker& worker = rig.worker(0);
  const uint32_t table =
      worker.Declare({Table("t", {.table = "table(rows=200,max_rows=64)"})}, kLong)->front();
  const Floats gradients(kRows * kWidth, 1.0f);
  const auto step = [&](uint64_t rows) {
    const Ids ids = AllIds(rows);
    RowsPush push{.learning_rate = 1.0f};
    push.tables.push_back({table, ids, gradients.data(), {}, nullptr});
    return worker.Wait(*TablesOf(worker).Push(push), kLong).status();
  };
  Must(step(64));
  const absl::Status full = step(65);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("table 't' step 2: 1 new rows do not fit"));
  Must(step(10));
}

TEST(RowCluster, ANetworkThatLosesRepeatsDamagesAndReordersChangesNoBit) {
  const Floats quiet = Train({.workers = 3, .flags = Flags(2, 8)});
  for (const uint64_t seed : {1, 2, 3}) {
    PumpedNetwork network;
    network.net().Randomize(seed,
                            {.drop = 0.05, .duplicate = 0.1, .corrupt = 0.05, .reorder = true});
    Worker::Options options;
    options.probe_interval = absl::Milliseconds(3);
    EXPECT_EQ(
        Train(
            {.workers = 3, .flags = Flags(2, 8), .options = options, .network = network.Factory()}),
        quiet)
        << seed;
    network.net().ClearFaults();
  }
}

TEST(RowCluster, ThreeHundredCutConnectionsChangeNoBit) {
  constexpr int kLonger = 100;
  const Job quiet{.workers = 3, .flags = Flags(2, 8), .steps = kLonger};
  PumpedNetwork network;
  std::atomic<uint64_t> reconnects = 0;
  Job cut = quiet;
  cut.options.probe_interval = absl::Milliseconds(1);
  cut.network = network.Factory();
  cut.reconnects = &reconnects;
  cut.before_step = [&network](int) {
    for (const FrameType type : {FrameType::kPush, FrameType::kReply, FrameType::kFetch}) {
      network.net().Cut(OfType(type), 1);
    }
  };
  EXPECT_EQ(Train(cut), Train(quiet));
  EXPECT_GE(reconnects, 300u);
}

TEST(RowCluster, TwoJobsOfOneSeedHaveTheSameFirstRowsAndReadingStoresNone) {
  const Spec open{.table = "table(init=normal,value=0.1)"};
  const auto first_rows = [&](const std::vector<std::string>& flags) {
    ClusterRig rig(1, flags);
    Worker& worker = rig.worker(0);
    const uint32_t table = worker.Declare({Table("t", open)}, kLong)->front();
    const Ids ids = {0, 5, ~uint64_t{0}, uint64_t{1} << 63, 12345678901234567u};
    const Floats rows = Fetch(worker, table, ids);
    Fetch(worker, table, AllIds(1000000));
    EXPECT_EQ(rig.held().rows, 0u);
    return rows;
  };
  const Floats rows = first_rows(Flags(1, 4));
  EXPECT_EQ(first_rows(Flags(3, 64)), rows);
  EXPECT_NE(first_rows({"--seed=6"}), rows);
  for (const float value : rows) {
    EXPECT_TRUE(std::isfinite(value));
    EXPECT_LT(std::abs(value), 0.7f);  // seven deviations
  }
}

TEST(RowCluster, TablesOfOneGroupShareFrames) {
  ClusterRig rig(1, Flags(1, 4));
  Worker& worker = rig.worker(0);
  std::vector<TensorDeclaration> tables;
  for (int t = 0; t < 26; ++t) tables.push_back(Table("t" + std::to_string(t)));
  const auto ids = *worker.Declare(tables, kLong);
  const Floats gradients(kRows * kWidth, 1.0f);
  const Ids all = AllIds();
  const auto step = [&] {
    RowsPush push{.learning_rate = 1.0f};
    std::vector<Floats> outs(ids.size(), Floats(all.size() * kWidth));
    for (size_t t = 0; t < ids.size(); ++t) {
      push.tables.push_back({ids[t], all, gradients.data(), all, outs[t].data()});
    }
    Must(worker.Wait(*TablesOf(worker).Push(push), kLong).status());
  };
  step();
  const auto before = worker.counts().traffic;
  step();
  const auto after = worker.counts().traffic;
  EXPECT_EQ(after.frames_sent - before.frames_sent, 4u);
  EXPECT_EQ(after.frames_received - before.frames_received, 4u);
}

TEST(RowCluster, ATableThatIsNotNamedTakesPartWithoutRows) {
  ClusterRig rig(2, Flags(2, 4));
  rig.OnEach([&](Worker& worker, int rank) {
    const auto ids = *worker.Declare({Table("a"), Table("b")}, kLong);
    const Floats before = Fetch(worker, ids[1], {3});
    Must(worker.Barrier("read", kLong));
    const Ids one = {3};
    const Floats gradient(kWidth, 2.0f);
    RowsPush push{.learning_rate = 1.0f};
    // Rank 0 steps the one, rank 1 the other.
    push.tables.push_back({ids[static_cast<size_t>(rank)], one, gradient.data(), {}, nullptr});
    Must(worker.Wait(*TablesOf(worker).Push(push), kLong).status());
    const Floats after = Fetch(worker, ids[1], {3});
    for (size_t j = 0; j < kWidth; ++j) EXPECT_EQ(after[j], before[j] - 1.0f);
  });
}

TEST(RowCluster, AGradientThatIsNotFiniteLeavesTheStepOutEverywhere) {
  ClusterRig rig(2, Flags(2, 8));
  rig.OnEach([&](Worker& worker, int rank) {
    const uint32_t table = worker.Declare({Table("t")}, kLong)->front();
    const Floats before = Fetch(worker, table, AllIds());
    Must(worker.Barrier("read", kLong));
    const Ids all = AllIds();
    Floats gradients(kRows * kWidth, 1.0f);
    if (rank == 1) gradients[77] = std::nanf("");
    Floats out(before.size(), -1.0f);
    RowsPush push{.learning_rate = 1.0f};
    push.tables.push_back({table, all, gradients.data(), all, out.data()});
    const auto done = worker.Wait(*TablesOf(worker).Push(push), kLong);
    Must(done.status());
    EXPECT_TRUE(done->nonfinite);
    EXPECT_EQ(out, before);
    gradients[77] = 1.0f;
    const auto next = worker.Wait(*TablesOf(worker).Push(push), kLong);
    Must(next.status());
    EXPECT_FALSE(next->nonfinite);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], before[i] - 1.0f);
  });
}

TEST(RowCluster, OneRankSetsRows) {
  ClusterRig rig(2, Flags(2, 8));
  rig.OnEach([&](Worker& worker, int rank) {
    const uint32_t table = worker.Declare({Table("t")}, kLong)->front();
    const Ids ids = {7, 3, 199};
    const Floats values = Normal(ids.size() * kWidth, 4);
    if (rank == 0) {
      const auto set =
          TablesOf(worker).Set({.table = table, .ids = ids, .gradients = values.data()});
      Must(worker.Wait(*set, kLong).status());
    }
    Must(worker.Barrier("set", kLong));
    EXPECT_EQ(Fetch(worker, table, ids), values);
    if (rank == 0) return;
    const auto other =
        TablesOf(worker).Set({.table = table, .ids = ids, .gradients = values.data()});
    EXPECT_EQ(worker.Wait(*other, kLong).status().code(), absl::StatusCode::kAlreadyExists);
  });
}

TEST(RowCluster, WrongArraysAreRefusedBeforeAnythingIsSent) {
  ClusterRig rig(1, Flags(1, 1));
  Worker& worker = rig.worker(0);
  const auto ids = *worker.Declare({Table("t")}, kLong);
  const Floats row(kWidth, 1.0f);
  const auto push = [&](const Ids& touched) {
    RowsPush step{.learning_rate = 1.0f};
    step.tables.push_back({ids[0], touched, row.data(), {}, nullptr});
    return TablesOf(worker).Push(step).status();
  };
  EXPECT_THAT(std::string(push({kRows}).message()),
              HasSubstr("table 't': id 200, at position 0 of the ids, is not from 0 to 199"));
  EXPECT_THAT(std::string(push({static_cast<uint64_t>(-1)}).message()), HasSubstr("id -1"));
  const TableRows none{.table = 99, .wanted = {}, .out = nullptr};
  EXPECT_EQ(TablesOf(worker).Fetch({&none, 1}).status().code(), absl::StatusCode::kNotFound);
  // A bucket of more rows than a frame takes.
  const auto wide = *worker.Declare({Table("wide", {.table = "table()", .width = 1024})}, kLong);
  const Ids many = AllIds(5000);
  Floats out(many.size() * 1024);
  const TableRows rows{.table = wide[0], .wanted = many, .out = out.data()};
  const absl::Status status = TablesOf(worker).Fetch({&rows, 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("5000 rows of bucket 0 of 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("row-buckets"));
  // Nothing was counted as a step.
  RowsPush step{.learning_rate = 1.0f};
  const Ids good = {3};
  step.tables.push_back({ids[0], good, row.data(), {}, nullptr});
  EXPECT_EQ(worker.Wait(*TablesOf(worker).Push(step), kLong)->step, 1u);
}

// The records of a table, by id.
using RecordMap = std::map<uint64_t, std::vector<std::byte>>;

RecordMap ScanAll(Worker& worker, uint32_t table, uint64_t since, size_t room, uint64_t* updates) {
  const TableLayout layout = *TablesOf(worker).LayoutOf(table);
  const size_t bytes = (layout.width + layout.moment_floats + 2) * sizeof(float);
  RecordMap found;
  for (uint32_t bucket = 0; bucket < layout.buckets; ++bucket) {
    uint64_t cursor = 0;
    do {
      Ids ids(room);
      std::vector<std::byte> records(room * bytes);
      uint64_t count = 99, complete_since = 99;
      const auto ticket = TablesOf(worker).Scan({.table = table,
                                                 .bucket = bucket,
                                                 .cursor = cursor,
                                                 .since = since,
                                                 .room = room,
                                                 .ids = ids.data(),
                                                 .records = records.data(),
                                                 .next = &cursor,
                                                 .count = &count,
                                                 .updates = updates,
                                                 .complete_since = &complete_since});
      EXPECT_TRUE(ticket.ok()) << ticket.status();
      Must(worker.Wait(*ticket, kLong).status());
      for (size_t i = 0; i < count; ++i) {
        const auto first = records.begin() + static_cast<ptrdiff_t>(i * bytes);
        EXPECT_TRUE(found.try_emplace(ids[i], first, first + static_cast<ptrdiff_t>(bytes)).second);
      }
    } while (cursor != 0);
  }
  return found;
}

TEST(RowCluster, RecordsMakeTheSameTableInAJobOfAnotherSize) {
  const Spec spec{.rule = "adamw"};
  RecordMap saved;
  uint64_t updates = 0;
  Floats rows;
  const auto step = [&](Worker& worker, uint32_t table, int number) {
    const Ids touched = Touched(number, 0);
    const Floats gradients = Gradients(number, 0, touched.size());
    RowsPush push{.learning_rate = kRate};
    push.tables.push_back({table, touched, gradients.data(), {}, nullptr});
    Must(worker.Wait(*TablesOf(worker).Push(push), kLong).status());
  };
  Floats expected;
  {
    ClusterRig rig(1, {"--servers=3", "--row-buckets=16"});
    Worker& worker = rig.worker(0);
    const uint32_t table = worker.Declare({Table("t", spec)}, kLong)->front();
    for (int i = 1; i <= 3; ++i) step(worker, table, i);
    saved = ScanAll(worker, table, 0, 5, &updates);
    rows = Fetch(worker, table, AllIds());
    step(worker, table, 4);
    expected = Fetch(worker, table, AllIds());
    uint64_t now = 0;
    const RecordMap changed = ScanAll(worker, table, updates, 1000, &now);
    EXPECT_EQ(now, 4u);
    const Ids touched = Touched(4, 0);
    EXPECT_EQ(changed.size(), std::set<uint64_t>(touched.begin(), touched.end()).size());
  }
  EXPECT_EQ(updates, 3u);
  EXPECT_GT(saved.size(), 20u);
  ClusterRig rig(1, {"--servers=1", "--row-buckets=4"});
  Worker& worker = rig.worker(0);
  const uint32_t table = worker.Declare({Table("t", spec)}, kLong)->front();
  step(worker, table, 9);  // which is forgotten
  Ids ids;
  std::vector<std::byte> records;
  for (const auto& [id, record] : saved) {
    ids.push_back(id);
    records.insert(records.end(), record.begin(), record.end());
  }
  RecordsSet set{
      .table = table, .ids = ids, .records = records.data(), .updates = updates, .replaces = true};
  Must(worker.Wait(*TablesOf(worker).SetRecords(set), kLong).status());
  uint64_t again = 0;
  EXPECT_EQ(ScanAll(worker, table, 0, 1000, &again), saved);
  EXPECT_EQ(again, updates);
  EXPECT_EQ(Fetch(worker, table, AllIds()), rows);
  step(worker, table, 4);
  EXPECT_EQ(Fetch(worker, table, AllIds()), expected);
  ids.push_back(ids[0]);
  set.ids = ids;
  records.resize(records.size() * 2);
  set.records = records.data();
  EXPECT_THAT(std::string(TablesOf(worker).SetRecords(set).status().message()),
              HasSubstr("the row at position 0 is set again"));
}

TEST(RowCluster, MeansOfRowsReachAllOrThoseThatWantThem) {
  for (const int servers : {1, 3}) {
    for (const int buckets : {1, 16}) {
      ClusterRig rig(3, Flags(servers, buckets));
      rig.OnEach([&](Worker& worker, int rank) {
        const auto ids =
            worker.Declare({Table("a", {.rule = "mean"}), Table("b", {.rule = "mean"})}, kLong);
        ASSERT_TRUE(ids.ok()) << ids.status();
        // Rank 2 has nothing of either, and gets all. Rank 1 wants two rows.
        const Ids touched = rank == 0 ? Ids{3, 9, 3} : Ids{9, 150};
        const Floats gradients(touched.size() * kWidth, rank == 0 ? 3.0f : 6.0f);
        const Ids wanted = {150, 4, 150};
        Floats out(wanted.size() * kWidth, -1.0f);
        RowsPush push;
        if (rank == 0) push.tables.push_back({(*ids)[0], touched, gradients.data(), {}, nullptr});
        if (rank == 1) {
          push.tables.push_back({(*ids)[0], touched, gradients.data(), wanted, out.data()});
        }
        if (rank == 2) push.tables.push_back({(*ids)[0], {}, nullptr, {}, nullptr});
        const auto ticket = TablesOf(worker).Push(push);
        ASSERT_TRUE(ticket.ok()) << ticket.status();
        const auto done = worker.Wait(*ticket, kLong);
        ASSERT_TRUE(done.ok()) << done.status();
        EXPECT_FALSE(done->absent);
        EXPECT_EQ(TablesOf(worker).Summed((*ids)[1]).status().code(), absl::StatusCode::kNotFound);
        const auto summed = TablesOf(worker).Summed((*ids)[0]);
        if (rank == 1) {
          Floats expected(kWidth, 2.0f);
          expected.insert(expected.end(), kWidth, 0.0f);
          expected.insert(expected.end(), kWidth, 2.0f);
          EXPECT_EQ(out, expected);
          EXPECT_EQ(summed.status().code(), absl::StatusCode::kNotFound);
          return;
        }
        ASSERT_TRUE(summed.ok()) << summed.status();
        EXPECT_EQ(summed->ids, Ids({3, 9, 150}));
        EXPECT_EQ(summed->rows[0], 2.0f);
        EXPECT_EQ(summed->rows[kWidth], 3.0f);
        EXPECT_EQ(summed->rows[2 * kWidth], 2.0f);
      });
      EXPECT_EQ(rig.held().rows, 0u);
    }
  }
}

TEST(RowCluster, MeansThatAreNotFiniteAreSaidToBeSo) {
  ClusterRig rig(2, Flags(1, 4));
  rig.OnEach([&](Worker& worker, int rank) {
    const uint32_t table = worker.Declare({Table("t", {.rule = "mean"})}, kLong)->front();
    const Ids touched = {7};
    const Floats gradients(kWidth, rank == 0 ? HUGE_VALF : 1.0f);
    Floats out(kWidth, 0.0f);
    RowsPush push;
    push.tables.push_back({table, touched, gradients.data(), touched, out.data()});
    const auto done = worker.Wait(*TablesOf(worker).Push(push), kLong);
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_TRUE(done->nonfinite);
    for (const float value : out) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(TablesOf(worker).Summed(table).status().code(), absl::StatusCode::kNotFound);
    // What servers do not hold cannot be fetched, set or scanned.
    const TableRows wants{.table = table, .wanted = touched, .out = out.data()};
    EXPECT_FALSE(worker.Wait(*TablesOf(worker).Fetch({&wants, 1}), kLong).ok());
    EXPECT_FALSE(
        worker.Wait(*TablesOf(worker).SetRecords({.table = table, .updates = 1}), kLong).ok());
  });
}

TEST(RowCluster, AWaitNamesTheTableAndTheRank) {
  ClusterRig rig(2, Flags(1, 4));
  rig.OnEach([&](Worker& worker, int rank) {
    const uint32_t table = worker.Declare({Table("items")}, kLong)->front();
    const Ids one = {3};
    const Floats gradient(kWidth, 2.0f);
    RowsPush push{.learning_rate = 1.0f};
    push.tables.push_back({table, one, gradient.data(), {}, nullptr});
    absl::StatusOr<TicketId> ticket;
    if (rank == 0) {
      ticket = TablesOf(worker).Push(push);
      absl::Status late;
      // The server's word that it waits comes with the first probe.
      for (int i = 0; i < 100 && GetErrorField(late, "waiting_for") != "worker 1"; ++i) {
        late = worker.Wait(*ticket, absl::Milliseconds(100)).status();
      }
      EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_EQ(GetErrorField(late, "tensor"), "items");
      EXPECT_EQ(GetErrorField(late, "waiting_for"), "worker 1");
    }
    Must(worker.Barrier("seen", kLong));
    if (rank == 1) ticket = TablesOf(worker).Push(push);
    Must(worker.Wait(*ticket, kLong).status());
  });
}

TEST(RowCluster, ADifferenceOfTwoWorkersIsNamed) {
  ClusterRig rig(2);
  rig.OnEach([&](Worker& worker, int rank) {
    Spec spec;
    if (rank == 1) spec.table = "table(rows=100)";
    const absl::Status status = worker.Declare({Table("t", spec)}, kLong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker 1 says table(rows=100)"));
    spec.table = rank == 0 ? "table(admit=3)" : "table(admit=3,ttl=100)";
    const absl::Status limits = worker.Declare({Table("u", spec)}, kLong).status();
    EXPECT_THAT(std::string(limits.message()),
                HasSubstr("worker 0 says table(admit=3), worker 1 says table(admit=3,ttl=100)"));
  });
}

TEST(RowCluster, WhatCannotBeIsRefusedWithItsReason) {
  ClusterRig rig(1);
  const auto refused = [&](const Spec& spec) {
    return std::string(rig.worker(0).Declare({Table("t", spec)}, kLong).status().message());
  };
  EXPECT_THAT(refused({.push = "topk(ratio=0.1)"}), HasSubstr("each row is encoded alone"));
  EXPECT_THAT(refused({.push = "ef(int8)"}), HasSubstr("a residual would be kept"));
  EXPECT_THAT(refused({.pull = "delta(int8)"}), HasSubstr("a delta would be kept"));
  EXPECT_THAT(refused({.push = "dither"}), HasSubstr("int8, int4 and int2 can"));
  EXPECT_THAT(refused({.rule = "sgd(momentum=0.9)"}), HasSubstr("momentum moves rows"));
  EXPECT_THAT(refused({.width = 1025}), HasSubstr("a row has 1 to 1024"));
  EXPECT_THAT(refused({.width = 0}), HasSubstr("no elements"));
  EXPECT_THAT(refused({.table = "table(admit=0)"}),
              HasSubstr("admit must be a whole number from 1"));
  EXPECT_THAT(refused({.table = "table(max_rows=255)"}),
              HasSubstr("table 't': max_rows=255 must be at least 256, which is 64 for each of the "
                        "job's 4 buckets"));
  EXPECT_THAT(refused({.table = "table(max_rows=256,evict=fifo)"}), HasSubstr("none, lru or lfu"));
  EXPECT_THAT(refused({.table = "table(evict=lru)"}), HasSubstr("none is without max_rows"));
  EXPECT_THAT(refused({.rule = "mean", .table = "table(admit=2)"}),
              HasSubstr("by the rule mean no rows are held"));
  const uint32_t limited =
      rig.worker(0).Declare({Table("u", {.table = "table(admit=2)"})}, kLong)->front();
  const Ids one = {7};
  const Floats row(kWidth, 1.0f);
  EXPECT_THAT(std::string(TablesOf(rig.worker(0))
                              .Set({.table = limited, .ids = one, .gradients = row.data()})
                              .status()
                              .message()),
              HasSubstr("none are set"));
}

}  // namespace
}  // namespace bdn::testing
