#include "compressors/memory/error_feedback.h"

#include "kernels/accumulate_kernels.h"
#include "kernels/clamp_to_finite.h"
#include "kernels/float_kernels.h"

namespace bdn {

float FeedbackDecay(float decay, bool learning_rate_correction, float previous_rate, float rate) {
  if (!learning_rate_correction || !(previous_rate > 0) || !(rate > 0)) return decay;
  // The factor is kept finite, since infinity times a residual of 0 is NaN.
  return ClampToFinite(decay * (previous_rate / rate));
}

float UndoDecay(float decay) { return decay == 0.0f ? 1.0f : decay; }

void Undo(const Feedback& step, const float* decoded) {
  AccumulateUndo(step.g, step.options, decoded, step.residual,
                 step.options.momentum == 0.0f ? nullptr : step.momentum);
}

void Owe(std::span<const float> decoded, float* residual) {
  for (size_t i = 0; i < decoded.size(); ++i) residual[i] = ClampToFinite(residual[i] + decoded[i]);
}

bool AllFinite(ConstView x, float scale) { return FirstNonFinite(x, scale) == x.n; }

}  // namespace bdn
