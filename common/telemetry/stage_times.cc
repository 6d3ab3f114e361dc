#include "common/telemetry/stage_times.h"

#include <algorithm>
#include <bit>
#include <ctime>
#include <deque>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/telemetry/recorder.h"

namespace bdn {
namespace {

constexpr std::string_view kNames[] = {"queue", "hold",  "sum",          "rule",   "encode", "send",
                                       "wait",  "reply", "decode_queue", "decode", "deliver"};
static_assert(std::size(kNames) == kNumStages);

constexpr Stage kWorkerStages[] = {Stage::kQueue,  Stage::kEncode,      Stage::kSend,
                                   Stage::kWait,   Stage::kDecodeQueue, Stage::kDecode,
                                   Stage::kDeliver};
constexpr Stage kServerStages[] = {Stage::kQueue, Stage::kHold,   Stage::kSum,
                                   Stage::kRule,  Stage::kEncode, Stage::kReply};

constexpr Family kStageBytes = {"stage_bytes", Metric::Kind::kCounter,
                                "The items of the stage have so many bytes in all.", "stage"};
constexpr Family kStageCpu = {"stage_cpu_seconds", Metric::Kind::kCounter,
                              "Threads have used so much CPU time on the items of the stage.",
                              "stage", 1e-9};
struct StageNumber {
  const char* name;
  const char* help;
  uint64_t StageCount::*value;
  // The families of bytes and CPU time; items and wall time are in the histogram.
  const Family* family;
};
constexpr StageNumber kNumbers[] = {
    {"items", "So many items have passed through this stage.", &StageCount::items, &kNotExported},
    {"bytes", "The items of this stage have so many bytes in all.", &StageCount::bytes,
     &kStageBytes},
    {"wall_ns", "The items have taken so long in this stage, one after the other.",
     &StageCount::wall_ns, &kNotExported},
    {"cpu_ns", "Threads have used so much CPU time on the items of this stage.",
     &StageCount::cpu_ns, &kStageCpu},
};

// A metric of each phase for each number, with the text of its name. Samples point into it, so it
// is never moved.
struct StageMetric {
  StageMetric(Stage of_stage, const StageNumber& of_number)
      : stage(of_stage),
        number(&of_number),
        name("stages." + std::string(StageName(of_stage)) + "." + of_number.name),
        metric{name.c_str(), Metric::Kind::kCounter, of_number.help, of_number.family,
               StageName(of_stage).data()} {}

  const Stage stage;
  const StageNumber* const number;
  const std::string name;
  const Metric metric;
};

const std::deque<StageMetric>& StageMetrics() {
  static const std::deque<StageMetric> metrics = [] {
    // A deque, because the elements point into themselves and must not move.
    std::deque<StageMetric> all;
    for (size_t stage = 0; stage < kNumStages; ++stage) {
      for (const StageNumber& number : kNumbers) {
        all.emplace_back(static_cast<Stage>(stage), number);
      }
    }
    return all;
  }();
  return metrics;
}

const Family& StageSeconds() {
  static const Family family = {"stage_seconds",
                                Metric::Kind::kHistogram,
                                "An item was in the stage for so long.",
                                "stage",
                                1,
                                StageBoundsInSeconds()};
  return family;
}

int64_t ReadClock(clockid_t id) {
  timespec time = {};
  clock_gettime(id, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

class MachineClock final : public StageClock {
 public:
  explicit MachineClock(bool with_cpu) : with_cpu_(with_cpu) {}
  int64_t WallNs() const override { return ReadClock(CLOCK_MONOTONIC); }
  int64_t ThreadCpuNs() const override {
    return with_cpu_ ? ReadClock(CLOCK_THREAD_CPUTIME_ID) : 0;
  }

 private:
  const bool with_cpu_;
};

// Never negative, whatever the clock does.
uint64_t Elapsed(int64_t from, int64_t to) {
  return static_cast<uint64_t>(std::max<int64_t>(0, to - from));
}

}  // namespace

size_t StageBucketOf(uint64_t ns) {
  // Rounded up: a duration of exactly a bound is in that bound's bucket.
  const uint64_t us = ns / 1000 + (ns % 1000 > 0 ? 1 : 0);
  if (us <= 1) return 0;
  // Half the bits, as a bucket spans a factor of four.
  return std::min(kNumStageBounds, static_cast<size_t>(std::bit_width(us - 1) + 1) / 2);
}

std::span<const double> StageBoundsInSeconds() {
  static const auto bounds = [] {
    std::array<double, kNumStageBounds> all = {};
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<double>(uint64_t{1} << (2 * i)) / 1e6;
    return all;
  }();
  return bounds;
}

std::string_view StageName(Stage stage) { return kNames[static_cast<size_t>(stage)]; }

std::optional<Stage> FindStage(uint32_t number) {
  if (number >= kNumStages) return std::nullopt;
  return static_cast<Stage>(number);
}

std::span<const Stage> WorkerStages() { return kWorkerStages; }
std::span<const Stage> ServerStages() { return kServerStages; }

const StageClock* MachineStageClock(bool with_cpu) {
  static const MachineClock all(true);
  static const MachineClock wall_alone(false);
  return with_cpu ? &all : &wall_alone;
}

std::unique_ptr<StageTimes> MakeStageTimes(const StageClock* clock) {
  return clock == nullptr ? nullptr : std::make_unique<StageTimes>(clock);
}

absl::StatusOr<const StageClock*> ParseStageTimes(std::string_view text) {
  if (text == "off") return nullptr;
  if (text == "wall") return MachineStageClock(/*with_cpu=*/false);
  if (text == "cpu") return MachineStageClock(/*with_cpu=*/true);
  return InvalidArgument("setting stage-times is '%s': expected cpu, wall or off", text);
}

void StageTimes::Add(Stage stage, const StageCount& more, const SpanId& id, int64_t begin_ns) {
  Cell& cell = cells_[static_cast<size_t>(stage)];
  // A lap without items belongs to an item that another lap counts: its time goes into the sums
  // only.
  if (more.items > 0) {
    // The mean, because the duration of each single item is not known.
    cell.items[StageBucketOf(more.wall_ns / more.items)].fetch_add(more.items,
                                                                   std::memory_order_relaxed);
  }
  cell.bytes.fetch_add(more.bytes, std::memory_order_relaxed);
  cell.wall_ns.fetch_add(more.wall_ns, std::memory_order_relaxed);
  // An atomic addition of 0 costs as much as any other, and phases that only wait have no CPU time.
  if (more.cpu_ns > 0) cell.cpu_ns.fetch_add(more.cpu_ns, std::memory_order_relaxed);
  if (recorder_ == nullptr) return;
  recorder_->Add({.begin_ns = begin_ns,
                  .wall_ns = more.wall_ns,
                  .key = id.key.value,
                  .step = id.step,
                  .cpu_ticks = TraceField(more.cpu_ns / kTraceTickNs),
                  .bytes = TraceField(more.bytes),
                  .peer = id.peer,
                  .kind = static_cast<uint8_t>(stage),
                  .flags = more.items == 0 ? kTraceCountedElsewhere : uint8_t{0}});
}

StageCounts StageTimes::Read() const {
  StageCounts counts;
  for (size_t i = 0; i < kNumStages; ++i) {
    uint64_t items = 0;
    // Items are counted in their buckets only, so that a count costs one addition.
    for (const auto& bucket : cells_[i].items) items += bucket.load(std::memory_order_relaxed);
    counts.by_stage[i] = {.items = items,
                          .bytes = cells_[i].bytes.load(std::memory_order_relaxed),
                          .wall_ns = cells_[i].wall_ns.load(std::memory_order_relaxed),
                          .cpu_ns = cells_[i].cpu_ns.load(std::memory_order_relaxed)};
  }
  return counts;
}

StageBuckets StageTimes::ReadBuckets(Stage stage) const {
  StageBuckets buckets = {};
  const Cell& cell = cells_[static_cast<size_t>(stage)];
  for (size_t i = 0; i < buckets.size(); ++i) {
    buckets[i] = cell.items[i].load(std::memory_order_relaxed);
  }
  return buckets;
}

StageSpan StageSpan::End(Stage stage, uint64_t bytes, const SpanId& id) const {
  if (times_ == nullptr) return {};
  const int64_t now = Now(times_);
  times_->Add(stage, {.items = 1, .bytes = bytes, .wall_ns = Elapsed(begun_ns_, now)}, id,
              begun_ns_);
  return {times_, now};
}

StageLaps::StageLaps(StageTimes* times, const SpanId& id) : times_(times), id_(id) {
  if (times_ == nullptr) return;
  wall_ns_ = times_->clock().WallNs();
  cpu_ns_ = times_->clock().ThreadCpuNs();
}

void StageLaps::End(Stage stage, uint64_t items, uint64_t bytes) {
  if (times_ == nullptr) return;
  const int64_t wall = times_->clock().WallNs();
  const int64_t cpu = times_->clock().ThreadCpuNs();
  times_->Add(stage,
              {.items = items,
               .bytes = bytes,
               .wall_ns = Elapsed(wall_ns_, wall),
               .cpu_ns = Elapsed(cpu_ns_, cpu)},
              id_, wall_ns_);
  wall_ns_ = wall;
  cpu_ns_ = cpu;
}

std::vector<std::unique_ptr<Registry::Source>> AddStages(std::span<const Stage> stages,
                                                         const StageTimes* times,
                                                         Registry* registry) {
  std::vector<std::unique_ptr<Registry::Source>> sources;
  for (const Stage stage : stages) {
    sources.push_back(registry->Add([times, stage](std::vector<Sample>* samples) {
      // One reading for all numbers of the phase, so that they agree.
      const StageCount count = times->Read()[stage];
      for (const StageMetric& row : StageMetrics()) {
        if (row.stage == stage) samples->push_back({&row.metric, count.*row.number->value});
      }
    }));
  }
  const std::vector<Stage> of_role(stages.begin(), stages.end());
  sources.push_back(registry->AddFamily(&StageSeconds(), [times, of_role] {
    std::vector<Series> all;
    for (const Stage stage : of_role) {
      const StageBuckets buckets = times->ReadBuckets(stage);
      all.push_back({std::string(StageName(stage)),
                     static_cast<double>(times->Read()[stage].wall_ns) * 1e-9,
                     {buckets.begin(), buckets.end()}});
    }
    return all;
  }));
  return sources;
}

}  // namespace bdn
