#include "common/telemetry/work_counts.h"

#include <algorithm>
#include <ctime>

#include "common/telemetry/system_samples.h"

namespace bdn {
namespace {

// A mark that is longer is the mistake of a program, and must not spoil the sums: 73 minutes.
constexpr uint64_t kLongestMark = uint64_t{1} << 42;
// Waits of several passes may come before the mark of the pass in which they lie.
constexpr size_t kMostInners = 4096;

uint64_t WallOf(const TraceRecord& mark) { return std::min(mark.wall_ns, kLongestMark); }
uint64_t QueuedOf(const TraceRecord& mark) {
  return std::min(uint64_t{mark.bytes} * kTraceTickNs, WallOf(mark));
}
int64_t BeginOf(const TraceRecord& mark) {
  return std::clamp<int64_t>(mark.begin_ns, 0, int64_t{1} << 62);
}
int64_t EndOf(const TraceRecord& mark) {
  return BeginOf(mark) + static_cast<int64_t>(WallOf(mark));
}

}  // namespace

void ProgramClock::Add(std::span<const TraceRecord> marks) {
  MutexLock lock(&mu_);
  // Parts come after what lies in them, because marks are in the order of their ends.
  for (const TraceRecord& mark : marks) {
    switch (static_cast<TraceKind>(mark.kind)) {
      case TraceKind::kStep:
        // Only whole steps count: their sums are divided by their number.
        ++times_.steps;
        times_.compute_ns += open_.compute_ns;
        times_.input_ns += open_.input_ns;
        times_.collection_ns += open_.collection_ns;
        times_.queued_ns += QueuedOf(mark);
        open_ = {};
        // What is left lay between the parts of the step.
        std::erase_if(inners_, [&](const Inner& inner) { return inner.begin_ns < EndOf(mark); });
        break;
      case TraceKind::kForward:
      case TraceKind::kBackward:
        open_.compute_ns += TimeOf(mark);
        break;
      case TraceKind::kOptimizer:
        open_.compute_ns += TimeOf(mark);
        // With overlap="forward" a few parameters step inside of a forward pass, whose mark has
        // that time, too.
        AddInner(mark);
        break;
      case TraceKind::kInput:
        open_.input_ns += TimeOf(mark);
        break;
      case TraceKind::kCollection:
        open_.collection_ns += WallOf(mark);
        [[fallthrough]];
      case TraceKind::kWaiting:
        AddInner(mark);
        break;
      default:
        break;
    }
  }
}

void ProgramClock::AddInner(const TraceRecord& mark) {
  if (inners_.size() == kMostInners) inners_.erase(inners_.begin());
  inners_.push_back({BeginOf(mark), EndOf(mark), WallOf(mark) - QueuedOf(mark)});
}

uint64_t ProgramClock::TimeOf(const TraceRecord& part) {
  uint64_t taken = QueuedOf(part);
  std::erase_if(inners_, [&](const Inner& inner) {
    const bool is_in = inner.begin_ns >= BeginOf(part) && inner.end_ns <= EndOf(part);
    if (is_in) taken += inner.ran_ns;
    return is_in;
  });
  return WallOf(part) - std::min(WallOf(part), taken);
}

ProgramTimes ProgramClock::Read() const {
  MutexLock lock(&mu_);
  return times_;
}

void ReadMachineTimes(WorkCounts* counts) {
  SystemSamples::Machine machine;
  if (SystemSamples::ReadMachine(&machine)) {
    counts->machine_busy_ns = machine.busy_ns;
    counts->machine_idle_ns = machine.idle_ns;
  }
  timespec time = {};
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0) {
    counts->process_cpu_ns =
        static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
  }
}

}  // namespace bdn
