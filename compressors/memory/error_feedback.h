#ifndef BANDONEON_COMPRESSORS_MEMORY_ERROR_FEEDBACK_H_
#define BANDONEON_COMPRESSORS_MEMORY_ERROR_FEEDBACK_H_

#include <cstddef>
#include <span>

#include "common/base/dtype.h"
#include "kernels/accumulate_kernels.h"

// Error feedback (Compressed communication with two-way error feedback, arXiv 1905.10936 and
// 2105.07829), optionally with momentum in front of it (dist-EF-SGDM):
//
//   m <- mu * m + a * g                 only with momentum
//   p  = a * g + mu * m + rho * e       without momentum: a * g + rho * e
//   send Q(p);  e <- p - decode(Q(p))
//
// A product or sum with e or m that overflows becomes the largest finite float32 of its sign, so
// that only the input itself can fail a step. All arrays are float32[n] except g, which is of any
// float type that the codec supports. e and m are in unscaled units: a undoes the loss scale. The
// link's owner owns the arrays; Codec::EncodeFeedback does a step.

namespace bdn {

// One step of error feedback on a link. The momentum array may be null where mu is 0.
struct Feedback {
  ConstView g;
  FeedbackOptions options;
  float* residual = nullptr;
  float* momentum = nullptr;
};

// Returns rho, the factor of the residual. `decay` is the option of error feedback. With the
// correction the residual, which was left when the learning rate was `previous_rate`, is also
// brought to the units of `rate` (for a rate that is applied after the pull: 1905.10936, the form
// with a changing learning rate). At the first step, and wherever a rate is not above 0, there is
// no correction. A result that overflows becomes the largest finite float32.
float FeedbackDecay(float decay, bool learning_rate_correction, float previous_rate, float rate);

// Returns the rho for Undo, which divides the rest of e by it. Without error feedback, where a link
// has momentum alone, rho is 0: the step took nothing of e, so nothing of e can be restored, and
// the rest is 0, to rounding. Divided by 1 it stays so.
float UndoDecay(float decay);

// Takes a step back whose payload was encoded but never counted: given the e that EncodeFeedback
// left and d = decode(payload), restores e <- (e + d - a * g - mu * m) / rho and
// m <- (m - a * g) / mu, to rounding, clamped as above. `decoded` is float32[n]. REQUIRES: `step`
// is as it was for EncodeFeedback, but for its decay, which is UndoDecay of that.
void Undo(const Feedback& step, const float* decoded);

// Keeps a payload that never counted where g is no longer at hand: adds the sent values to the
// residual, e <- e + d (that is p, to rounding). The momentum keeps the step.
void Owe(std::span<const float> decoded, float* residual);

// Returns whether every scale * x[i] is finite. One pass. Takes float64 too.
bool AllFinite(ConstView x, float scale);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_MEMORY_ERROR_FEEDBACK_H_
