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
#include "common/telemetry/registry.h"

namespace bdn {

// What a key passes through in a step, in the order of the way. docs/thread_model.md says where
// each begins and ends. The numbers go over the wire.
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
// Those of a role, in order.
std::span<const Stage> WorkerStages();
std::span<const Stage> ServerStages();

// How long items took, by powers of four from a microsecond: bucket i has those that took at most 4^i us,
// the last one all others.
inline constexpr size_t kNumStageBounds = 14;  // to 67 s
using StageBuckets = std::array<uint64_t, kNumStageBounds + 1>;
size_t StageBucketOf(uint64_t ns);
std::span<const double> StageBoundsInSeconds();

// What has passed through one stage.
struct StageCount {
  uint64_t items = 0;
  uint64_t bytes = 0;
  uint64_t wall_ns = 0;
  uint64_t cpu_ns = 0;  // of the threads that worked on it; 0 where it only waits

  bool operator==(const StageCount&) const = default;
};

// Of one node, since it began, by Stage.
struct StageCounts {
  std::array<StageCount, kNumStages> by_stage;

  StageCount& operator[](Stage stage) { return by_stage[static_cast<size_t>(stage)]; }
  const StageCount& operator[](Stage stage) const { return by_stage[static_cast<size_t>(stage)]; }
  bool operator==(const StageCounts&) const = default;
};

// What stages are timed by. Thread-safe.
class StageClock {
 public:
  virtual ~StageClock() = default;
  virtual int64_t WallNs() const = 0;       // never goes back; its zero is arbitrary
  virtual int64_t ThreadCpuNs() const = 0;  // of the calling thread
};
// The machine's. Without the CPU's time, which is a call of the kernel, that is 0.
const StageClock* MachineStageClock(bool with_cpu);
// By setting stage-times: "cpu", "wall" (without the CPU's time) or "off" (null).
absl::StatusOr<const StageClock*> ParseStageTimes(std::string_view text);

// What a node counts of its stages. Its owner lends it to whoever a key passes; null counts nothing
// and reads no clock. Thread-safe: numbers are exact, and those of one stage may be read between two
// additions of one item.
class StageTimes {
 public:
  explicit StageTimes(const StageClock* clock) : clock_(clock) {}  // borrowed
  StageTimes(const StageTimes&) = delete;
  StageTimes& operator=(const StageTimes&) = delete;

  const StageClock& clock() const { return *clock_; }
  // Everything that is counted comes by here: what records single spans hooks in here, now being
  // their end.
  void Add(Stage stage, const StageCount& more);
  StageCounts Read() const;
  // Items of several that were added at once count as if each had taken the same. What was added
  // without an item is in none.
  StageBuckets ReadBuckets(Stage stage) const;

 private:
  struct alignas(64) Cell {  // a line of the cache: stages run on different threads
    // Relaxed: they publish nothing but themselves.
    std::array<std::atomic<uint64_t>, kNumStageBounds + 1> items = {};  // by StageBucketOf
    std::atomic<uint64_t> bytes = 0;
    std::atomic<uint64_t> wall_ns = 0;
    std::atomic<uint64_t> cpu_ns = 0;
  };

  const StageClock* const clock_;
  std::array<Cell, kNumStages> cells_;
};

// Null where there is no clock.
std::unique_ptr<StageTimes> MakeStageTimes(const StageClock* clock);

// An item on its way to the end of a stage, on whichever thread that is. A small value; may go with
// what is on the way. `times` may be null and outlives it.
class StageSpan {
 public:
  StageSpan() = default;
  explicit StageSpan(StageTimes* times) : StageSpan(times, Now(times)) {}

  // How much later this one began, in ns; 0 where it did not.
  uint64_t NsAfter(const StageSpan& earlier) const {
    return begun_ns_ > earlier.begun_ns_ ? static_cast<uint64_t>(begun_ns_ - earlier.begun_ns_) : 0;
  }
  // The end: counts one item. The span that begins where this one ended.
  StageSpan End(Stage stage, uint64_t bytes) const;

 private:
  StageSpan(StageTimes* times, int64_t begun_ns) : times_(times), begun_ns_(begun_ns) {}
  static int64_t Now(const StageTimes* times) {
    return times == nullptr ? 0 : times->clock().WallNs();
  }

  StageTimes* times_ = nullptr;
  int64_t begun_ns_ = 0;
};

// What one thread does, one stage after the other without a gap. `times` may be null.
class StageLaps {
 public:
  explicit StageLaps(StageTimes* times);
  StageLaps(const StageLaps&) = delete;
  StageLaps& operator=(const StageLaps&) = delete;

  // All since the beginning or the last call was of `stage`, for so many items; 0 where the item
  // was or will be counted by another lap.
  void End(Stage stage, uint64_t items, uint64_t bytes);

 private:
  StageTimes* const times_;
  int64_t wall_ns_ = 0;
  int64_t cpu_ns_ = 0;
};

// Reports the stages as the metrics stages.NAME.items, .bytes, .wall_ns and .cpu_ns, and to exporters as
// the histogram stage_seconds and what was counted of bytes and CPU time, while the
// sources live. `times` and `registry` are borrowed and outlive them.
std::vector<std::unique_ptr<Registry::Source>> AddStages(std::span<const Stage> stages,
                                                         const StageTimes* times,
                                                         Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_STAGE_TIMES_H_
