#ifndef BANDONEON_SCHEDULER_JOB_METRICS_H_
#define BANDONEON_SCHEDULER_JOB_METRICS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/telemetry/registry.h"
#include "scheduler/service.h"

namespace bdn {

// Reports a job as its scheduler sees it to exporters, as long as the sources live: its state, the
// number of its nodes, its steps and declarations, the calls refused; and while it runs, how long
// ago each node was heard, of the 256 nodes not heard for longest. Both arguments are borrowed and
// outlive the sources.
std::vector<std::unique_ptr<Registry::Source>> AddJobMetrics(SchedulerService* service,
                                                             Registry* registry);

// The counters of a scheduler's ended jobs, by result. Thread-safe.
class JobsEnded {
 public:
  explicit JobsEnded(Registry* registry);  // Borrows `registry`, which outlives it.
  JobsEnded(const JobsEnded&) = delete;
  JobsEnded& operator=(const JobsEnded&) = delete;

  void Count(bool failed) { (failed ? failed_ : done_).fetch_add(1, std::memory_order_relaxed); }

 private:
  // Accessed relaxed: they publish no other memory.
  std::atomic<uint64_t> done_ = 0;
  std::atomic<uint64_t> failed_ = 0;
  std::unique_ptr<Registry::Source> source_;  // last, because it reads the counters above
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_METRICS_H_
