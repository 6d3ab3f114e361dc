#ifndef BANDONEON_KERNELS_ACCUMULATE_KERNELS_H_
#define BANDONEON_KERNELS_ACCUMULATE_KERNELS_H_

#include "common/base/dtype.h"

// The elementwise loops of the memories (compressors/memory/error_feedback.h and delta.h): what
// codecs get to encode. g and w are float32, float16 or bfloat16. As in float_kernels.h each
// element goes through the operations written here, each rounded, so the bits are the same on every
// target.

namespace bdn {

struct FeedbackOptions {
  float scale = 1.0f;     // a
  float decay = 1.0f;     // rho: see FeedbackDecay
  float momentum = 0.0f;  // mu
};

// to <- p, and nothing else changes; NaN where ag is not finite. The arrays do not overlap.
//
//   ag = a * g[i]
//   m  = clamp(mu * momentum[i] + ag)
//   p  = clamp(clamp(ag + mu * m) + clamp(rho * residual[i]))
//   p  = clamp(ag + clamp(rho * residual[i]))                    without momentum (null)
//
// where clamp is ClampToFinite.
void AccumulateInto(ConstView g, const FeedbackOptions& options, const float* residual,
                    const float* momentum, float* to);
// The same, with residual <- p and momentum <- m.
void AccumulateInPlace(ConstView g, const FeedbackOptions& options, float* residual,
                       float* momentum);
// Takes AccumulateInPlace and the subtraction of what was decoded back, to rounding.
//
//   ag = a * g[i]
//   residual <- (((residual + decoded) - ag) - mu * momentum) / rho
//   residual <- ((residual + decoded) - ag) / rho                    without momentum (null)
//   momentum <- (momentum - ag) / mu
void AccumulateUndo(ConstView g, const FeedbackOptions& options, const float* decoded,
                    float* residual, float* momentum);
// to[i] = clamp(w[i] - r[i]), NaN where w[i] is not finite.
void SubtractInto(ConstView w, const float* r, float* to);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_ACCUMULATE_KERNELS_H_
