#ifndef BANDONEON_SCHEDULER_STATUS_REPLY_H_
#define BANDONEON_SCHEDULER_STATUS_REPLY_H_

#include "absl/time/time.h"
#include "scheduler/job.h"

namespace bandoneon::control {
class History;
class StatusReply;
}  // namespace bandoneon::control

namespace bdn {

// Writes the state of the job, for people and tools.
void WriteStatus(const Job& job, absl::Time now, bandoneon::control::StatusReply* reply);
// Writes the job's history; nothing where the job keeps none.
void WriteHistory(const Job& job, absl::Time now, bandoneon::control::History* message);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_STATUS_REPLY_H_
