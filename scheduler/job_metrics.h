#ifndef BANDONEON_SCHEDULER_JOB_METRICS_H_
#define BANDONEON_SCHEDULER_JOB_METRICS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/telemetry/registry.h"
#include "scheduler/service.h"

namespace bdn {

// Reports a job as its scheduler sees it, for exporters, while the sources live: its state, who is there,
// when each was heard, what was refused. Both are borrowed and outlive them.
std::vector<std::unique_ptr<Registry::Source>> AddJobMetrics(SchedulerService* service,
                                                             Registry* registry);

// How many jobs of a scheduler have ended, one after the other, and how. Thread-safe.
class JobsEnded {
 public:
  explicit JobsEnded(Registry* registry);  // borrowed; outlives it
  JobsEnded(const JobsEnded&) = delete;
  JobsEnded& operator=(const JobsEnded&) = delete;

  void Count(bool failed) { (failed ? failed_ : done_).fetch_add(1, std::memory_order_relaxed); }

 private:
  // Relaxed: they publish nothing but themselves.
  std::atomic<uint64_t> done_ = 0;
  std::atomic<uint64_t> failed_ = 0;
  std::unique_ptr<Registry::Source> source_;  // last: it reads the above
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_METRICS_H_
