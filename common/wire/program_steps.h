#ifndef BANDONEON_COMMON_WIRE_PROGRAM_STEPS_H_
#define BANDONEON_COMMON_WIRE_PROGRAM_STEPS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace bdn {

// The number of steps that a rank's program had ended when it pushed.
struct ProgramPlace {
  Rank rank = -1;
  uint32_t steps = 0;  // as FrameHeader::program_steps: 1 + the steps that had ended; 0: not known
};

// Checks that two contributions to one round of a tensor belong to one step of the program, without
// which their mean has no meaning. InvalidArgument names both ranks, their counts and the usual
// cause. Returns OK where one count is not known.
absl::Status CheckSameProgramSteps(const std::string& tensor, Step step, const ProgramPlace& first,
                                   const ProgramPlace& second);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_PROGRAM_STEPS_H_
