#ifndef BANDONEON_COMMON_WIRE_PROGRAM_STEPS_H_
#define BANDONEON_COMMON_WIRE_PROGRAM_STEPS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace bdn {

// Where a rank's program was when it pushed.
struct ProgramPlace {
  Rank rank = -1;
  uint32_t steps = 0;  // as FrameHeader::program_steps: 1 + how many had ended; 0: not known
};

// Contributions to one round of a tensor belong to one step of the program, or their mean is none.
// InvalidArgument names both ranks, their counts and what usually causes it; OK where one is not known.
absl::Status CheckSameProgramSteps(const std::string& tensor, Step step, const ProgramPlace& first,
                                   const ProgramPlace& second);

}  // namespace bdn

#endif  // BANDONEON_COMMON_WIRE_PROGRAM_STEPS_H_
