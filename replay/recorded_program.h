#ifndef BANDONEON_REPLAY_RECORDED_PROGRAM_H_
#define BANDONEON_REPLAY_RECORDED_PROGRAM_H_

#include <cstdint>

#include "replay/recorded_steps.h"
#include "replay/replay_model.h"
#include "trace/job_trace.h"

namespace bdn {

// Fills in the programs of a worker's steps, whose exchanges are there: what it computed, when it
// began exchanges, and which it waited for. Returns the ns of its waits that no exchange explains,
// which a replay leaves as they were.
int64_t AddProgram(const JobTrace& job, const WorkerSteps& source, bool has_marks,
                   WorkerModel* worker);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_RECORDED_PROGRAM_H_
