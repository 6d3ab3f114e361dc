#ifndef BANDONEON_KERNELS_ACCUMULATE_KERNELS_H_
#define BANDONEON_KERNELS_ACCUMULATE_KERNELS_H_

#include "common/base/dtype.h"

// The elementwise loops of error feedback and delta (compressors/memory/error_feedback.h and
// delta.h), which compute p, the values to encode. g and w are float32, float16 or bfloat16. As in
// float_kernels.h, each element goes through the operations written here, each rounded, so the bits
// are the same on every target.

namespace bdn {

// The factors of a step of error feedback.
struct FeedbackOptions {
  float scale = 1.0f;     // a
  float decay = 1.0f;     // rho: see FeedbackDecay
  float momentum = 0.0f;  // mu
};

// Computes p into `to`, and changes nothing else. p is NaN where ag is not finite. The arrays do
// not overlap.
//
//   ag = a * g[i]
//   m  = clamp(mu * momentum[i] + ag)
//   p  = clamp(clamp(ag + mu * m) + clamp(rho * residual[i]))
//   p  = clamp(ag + clamp(rho * residual[i]))                    without momentum (null)
//
// Here clamp is ClampToFinite.
void AccumulateInto(ConstView g, const FeedbackOptions& options, const float* residual,
                    const float* momentum, float* to);
// Computes the same, and sets residual <- p and momentum <- m.
void AccumulateInPlace(ConstView g, const FeedbackOptions& options, float* residual,
                       float* momentum);
// Takes AccumulateInPlace and the subtraction of the decoded values back, to rounding.
//
//   ag = a * g[i]
//   residual <- clamp((((residual + decoded) - ag) - mu * momentum) / rho)
//   residual <- clamp(((residual + decoded) - ag) / rho)              without momentum (null)
//   momentum <- clamp((momentum - ag) / mu)
void AccumulateUndo(ConstView g, const FeedbackOptions& options, const float* decoded,
                    float* residual, float* momentum);
// Sets to[i] = clamp(w[i] - r[i]), or NaN where w[i] is not finite.
void SubtractInto(ConstView w, const float* r, float* to);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_ACCUMULATE_KERNELS_H_
