#ifndef BANDONEON_SCHEDULER_STATUS_REPLY_H_
#define BANDONEON_SCHEDULER_STATUS_REPLY_H_

#include "absl/time/time.h"
#include "scheduler/job.h"

namespace bandoneon::control {
class StatusReply;
}

namespace bdn {

// The state of the job for people and tools.
void WriteStatus(const Job& job, absl::Time now, bandoneon::control::StatusReply* reply);

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_STATUS_REPLY_H_
