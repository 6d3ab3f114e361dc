#ifndef BANDONEON_REPLAY_RECORDED_STEPS_H_
#define BANDONEON_REPLAY_RECORDED_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trace/job_trace.h"
#include "trace/program_time.h"

namespace bdn {

// The time of a step in a worker's program.
struct StepWindow {
  uint64_t number = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t queued_ns = 0;
};

// A worker with what its program did in the chosen steps.
struct WorkerSteps {
  uint32_t node = 0;                             // its index in JobTrace::nodes
  std::vector<ProgramSpan> spans;                // empty without marks
  std::vector<StepWindow> windows;               // by time
  std::vector<std::vector<uint32_t>> exchanges;  // by window: indices in the job, by begin
};

// The steps of a recording that can be replayed.
struct RecordedSteps {
  std::vector<WorkerSteps> workers;  // one a rank
  std::vector<uint64_t> numbers;     // without a gap; each worker has a window for each
  bool has_marks = false;
  std::vector<std::string> warnings;  // what is left out, as sentences
};

// Chooses the longest run of steps that all workers have recorded whole. NotFound where no step is
// whole; Unimplemented where programs take part through a host's daemon, or two runs of a job are
// in one recording.
absl::StatusOr<RecordedSteps> ChooseSteps(const JobTrace& job);

}  // namespace bdn

#endif  // BANDONEON_REPLAY_RECORDED_STEPS_H_
