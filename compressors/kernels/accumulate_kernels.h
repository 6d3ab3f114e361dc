#ifndef BANDONEON_COMPRESSORS_KERNELS_ACCUMULATE_KERNELS_H_
#define BANDONEON_COMPRESSORS_KERNELS_ACCUMULATE_KERNELS_H_

#include "common/base/dtype.h"
#include "compressors/memory/error_feedback.h"

// The elementwise loops of the memories (memory/error_feedback.h, memory/delta.h): what codecs get
// to encode. g and w are float32, float16 or bfloat16. As in float_kernels.h each element goes
// through the operations written here, each rounded, so the bits are the same on every target.

namespace bdn {

// ag = a * g[i];  m = held(mu * momentum[i] + ag);
// p = held(held(ag + mu * m) + held(rho * residual[i])), NaN where ag is not finite,
// and without momentum (null):  p = held(ag + held(rho * residual[i])).
// held(v) is v, or the largest finite float of its sign where v is infinite.
// to <- p, nothing else changed. The arrays do not overlap.
void AccumulateInto(ConstView g, const FeedbackOptions& options, const float* residual,
                    const float* momentum, float* to);
// residual <- p, momentum <- m.
void AccumulateInPlace(ConstView g, const FeedbackOptions& options, float* residual,
                       float* momentum);
// ag = a * g[i];  residual <- (((residual + decoded) - ag) - mu * m) / rho;  m <- (m - ag) / mu
// and without momentum:  residual <- ((residual + decoded) - ag) / rho.
void AccumulateUndo(ConstView g, const FeedbackOptions& options, const float* decoded,
                    float* residual, float* momentum);
// to[i] = held(w[i] - r[i]), NaN where w[i] is not finite.
void SubtractInto(ConstView w, const float* r, float* to);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_KERNELS_ACCUMULATE_KERNELS_H_
