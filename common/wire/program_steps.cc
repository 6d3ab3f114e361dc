#include "common/wire/program_steps.h"

#include "common/base/status.h"

namespace bdn {

absl::Status CheckSameProgramSteps(const std::string& tensor, Step step, const ProgramPlace& first,
                                   const ProgramPlace& second) {
  if (first.steps == 0 || second.steps == 0 || first.steps == second.steps) return absl::OkStatus();
  return InvalidArgument(
      "tensor '%s' step %d: rank %d pushed it after %d steps of its program and rank %d after %d, "
      "so their mean would be over different steps. Usually one rank has caught an error of "
      "backward() and gone on, has left out a batch or a step (continue), or has run a backward "
      "pass more: let all ranks make the same passes and steps, and start again from a checkpoint",
      tensor, step, first.rank, first.steps - 1, second.rank, second.steps - 1);
}

}  // namespace bdn
