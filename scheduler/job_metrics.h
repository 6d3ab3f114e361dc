#ifndef BANDONEON_SCHEDULER_JOB_METRICS_H_
#define BANDONEON_SCHEDULER_JOB_METRICS_H_

#include <memory>
#include <vector>

#include "common/telemetry/registry.h"
#include "scheduler/service.h"

namespace bdn {

// Reports a job as its scheduler sees it, for exporters, while the sources live: its state, who is there,
// when each was heard, what was refused. Both are borrowed and outlive them.
std::vector<std::unique_ptr<Registry::Source>> AddJobMetrics(SchedulerService* service,
                                                             Registry* registry);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_METRICS_H_
