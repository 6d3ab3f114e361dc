#ifndef BANDONEON_COMMON_TELEMETRY_STAGE_TIMES_H_
#define BANDONEON_COMMON_TELEMETRY_STAGE_TIMES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/telemetry/registry.h"

namespace bdn {

// A phase of a key's step, in the order in which a key passes them. (Names in the code and on the
// wire call a phase a stage.) docs/thread_model.md says where each begins and ends. The numbers are
// on the wire: never renumber.
enum class Stage : uint8_t {
  kQueue = 0,
  kHold = 1,
  kSum = 2,
  kRule = 3,
  kEncode = 4,
  kSend = 5,
  kWait = 6,
  kReply = 7,
  kDecodeQueue = 8,
  kDecode = 9,
  kDeliver = 10,
};
inline constexpr size_t kNumStages = 11;

std::string_view StageName(Stage stage);  // "decode_queue"
std::optional<Stage> FindStage(uint32_t number);
// Return the phases of a role, in order.
std::span<const Stage> WorkerStages();
std::span<const Stage> ServerStages();

// Counts of items by how long they took, by powers of four from a microsecond: bucket i counts the
// items that took at most 4^i us and more than the bucket before; the last one counts all longer
// ones.
inline constexpr size_t kNumStageBounds = 14;  // the last bound is 67 s
using StageBuckets = std::array<uint64_t, kNumStageBounds + 1>;
size_t StageBucketOf(uint64_t ns);
std::span<const double> StageBoundsInSeconds();

// The items that have passed through one phase, with their bytes and times.
struct StageCount {
  uint64_t items = 0;
  uint64_t bytes = 0;
  uint64_t wall_ns = 0;
  uint64_t cpu_ns = 0;  // CPU time of the threads that worked on them; 0 where items only wait

  bool operator==(const StageCount&) const = default;
};

// The item of a span: a key's step and, where there is one, the node on the other side.
struct SpanId {
  Key key;
  Step step = 0;
  NodeId peer = 0;
};

// The counts of one node since it began, by Stage.
struct StageCounts {
  std::array<StageCount, kNumStages> by_stage;

  StageCount& operator[](Stage stage) { return by_stage[static_cast<size_t>(stage)]; }
  const StageCount& operator[](Stage stage) const { return by_stage[static_cast<size_t>(stage)]; }
  bool operator==(const StageCounts&) const = default;
};

// A source of the times of phases. Thread-safe.
class StageClock {
 public:
  virtual ~StageClock() = default;
  virtual int64_t WallNs() const = 0;       // never goes back; its zero is arbitrary
  virtual int64_t ThreadCpuNs() const = 0;  // CPU time of the calling thread
};
// Returns the machine's clock. Without `with_cpu`, which costs a system call, the CPU time is 0.
const StageClock* MachineStageClock(bool with_cpu);
// Parses setting stage-times: "cpu", "wall" (without CPU time) or "off" (null).
absl::StatusOr<const StageClock*> ParseStageTimes(std::string_view text);

class Recorder;

// The counters of a node's phases, and the recorder of single ones. The owner lends them to all
// code that a key passes; a null pointer in their place counts nothing and reads no clock.
// Thread-safe: numbers are exact, but a reader may see a phase between two of the additions for one
// item.
class StageTimes {
 public:
  explicit StageTimes(const StageClock* clock) : clock_(clock) {}  // borrowed
  StageTimes(const StageTimes&) = delete;
  StageTimes& operator=(const StageTimes&) = delete;

  const StageClock& clock() const { return *clock_; }
  // Records single spans from now on, with a borrowed recorder. To be called before the first Add.
  void RecordWith(Recorder* recorder) { recorder_ = recorder; }
  // Adds to a phase what began at `begin_ns` of the clock, and records it.
  void Add(Stage stage, const StageCount& more, const SpanId& id, int64_t begin_ns);
  StageCounts Read() const;
  // Returns the items by duration. Items that were added together count as if each had taken the
  // same; time that was added without an item is in no bucket.
  StageBuckets ReadBuckets(Stage stage) const;

 private:
  struct alignas(64) Cell {  // a cache line each: phases run on different threads
    // Accessed relaxed: they publish no other memory.
    std::array<std::atomic<uint64_t>, kNumStageBounds + 1> items = {};  // indexed by StageBucketOf
    std::atomic<uint64_t> bytes = 0;
    std::atomic<uint64_t> wall_ns = 0;
    std::atomic<uint64_t> cpu_ns = 0;
  };

  const StageClock* const clock_;
  Recorder* recorder_ = nullptr;
  std::array<Cell, kNumStages> cells_;
};

// Returns null where `clock` is null.
std::unique_ptr<StageTimes> MakeStageTimes(const StageClock* clock);

// A measurement of an item on its way to the end of a phase, on whichever thread that comes. A
// small value, which may travel with the item. `times` may be null and outlives it.
class StageSpan {
 public:
  StageSpan() = default;
  explicit StageSpan(StageTimes* times) : StageSpan(times, Now(times)) {}

  // Returns by how many ns this span began later than `earlier`; 0 where it did not.
  uint64_t NsAfter(const StageSpan& earlier) const {
    return begun_ns_ > earlier.begun_ns_ ? static_cast<uint64_t>(begun_ns_ - earlier.begun_ns_) : 0;
  }
  // Ends the phase: counts one item, and returns the span that begins where this one ended.
  StageSpan End(Stage stage, uint64_t bytes, const SpanId& id) const;

 private:
  StageSpan(StageTimes* times, int64_t begun_ns) : times_(times), begun_ns_(begun_ns) {}
  static int64_t Now(const StageTimes* times) {
    return times == nullptr ? 0 : times->clock().WallNs();
  }

  StageTimes* times_ = nullptr;
  int64_t begun_ns_ = 0;
};

// A measurement of the phases that one thread works on, one after the other without a gap. Not
// thread-safe. `times` may be null.
class StageLaps {
 public:
  StageLaps(StageTimes* times, const SpanId& id);
  StageLaps(const StageLaps&) = delete;
  StageLaps& operator=(const StageLaps&) = delete;

  // Counts all the time since the beginning or the last call for `stage`, with so many items; 0
  // items where the item was or will be counted by another lap.
  void End(Stage stage, uint64_t items, uint64_t bytes);

 private:
  StageTimes* const times_;
  const SpanId id_;
  int64_t wall_ns_ = 0;
  int64_t cpu_ns_ = 0;
};

// Reports the phases as long as the sources live: as the metrics stages.NAME.items, .bytes,
// .wall_ns and .cpu_ns, and to exporters as the histogram stage_seconds and the counters of bytes
// and CPU time. `times` and `registry` are borrowed and outlive the sources.
std::vector<std::unique_ptr<Registry::Source>> AddStages(std::span<const Stage> stages,
                                                         const StageTimes* times,
                                                         Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_STAGE_TIMES_H_
