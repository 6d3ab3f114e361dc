#ifndef BANDONEON_COMMON_TELEMETRY_WORK_COUNTS_H_
#define BANDONEON_COMMON_TELEMETRY_WORK_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/telemetry/trace_layout.h"

namespace bdn {

// The waits of a node for one node of the other role. Of a worker, for a server: from the moment at
// which a push was given to the transport to its reply. Of a server, for a worker: from the first
// push of a round to that worker's.
struct PeerWait {
  Rank rank = 0;
  uint64_t items = 0;
  uint64_t ns = 0;  // the sum of all items

  bool operator==(const PeerWait&) const = default;
};
// A node with more peers tells of none, so that heartbeats and their windows stay small.
inline constexpr size_t kMostPeerWaits = 64;

// The times of a program's steps, in nanoseconds, as totals since it began. They are those of the
// thread that trains. A part's time in the run queue counts in `queued_ns` alone.
struct ProgramTimes {
  uint64_t steps = 0;
  uint64_t compute_ns = 0;     // forward, backward and the optimizer, without waits in them
  uint64_t input_ns = 0;       // from the end of a step to the first forward of the next one
  uint64_t collection_ns = 0;  // the garbage collector's
  uint64_t queued_ns = 0;      // the thread was ready to run, and no processor was free

  bool operator==(const ProgramTimes&) const = default;
};

// The counts of a node, as totals since it joined, by which the scheduler finds who slows the job.
struct WorkCounts {
  ProgramTimes program;          // of a worker whose program marks its steps; else zeros
  std::vector<PeerWait> peers;   // ranks rise
  uint64_t open_requests = 0;    // of a worker, now: they wait for an answer of a server
  uint64_t connections = 0;      // of a worker, now: to servers, open or being made
  uint64_t machine_busy_ns = 0;  // of all processors of the machine together
  uint64_t machine_idle_ns = 0;
  uint64_t process_cpu_ns = 0;

  bool operator==(const WorkCounts&) const = default;
};

// The sums of the marks of a program. Thread-safe.
class ProgramClock {
 public:
  // Adds marks, in the order of their ends; a step counts when its own mark is here. Waits and
  // collections are taken out of the part of the step in which they lie, although its mark may come
  // with a later call.
  void Add(std::span<const TraceRecord> marks);
  ProgramTimes Read() const;

 private:
  // A span of time that lies in another one, and is no work of it.
  struct Inner {
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
    uint64_t ran_ns = 0;  // without the run queue
  };

  // Returns the time of a part without the run queue and without what lies in it, which is
  // forgotten.
  uint64_t TimeOf(const TraceRecord& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddInner(const TraceRecord& mark) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  ProgramTimes times_ ABSL_GUARDED_BY(mu_);
  ProgramTimes open_ ABSL_GUARDED_BY(mu_);          // of the step that has not ended
  std::vector<Inner> inners_ ABSL_GUARDED_BY(mu_);  // whose outer part has not come; the latest
};

// Fills in the times of the machine and of this process; zeros where the system does not tell.
// Takes about 50 us.
void ReadMachineTimes(WorkCounts* counts);

}  // namespace bdn

#endif  // BANDONEON_COMMON_TELEMETRY_WORK_COUNTS_H_
