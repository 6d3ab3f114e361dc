#ifndef BANDONEON_COMPRESSORS_KERNELS_FLOAT_KERNELS_H_
#define BANDONEON_COMPRESSORS_KERNELS_FLOAT_KERNELS_H_

#include <cstddef>

#include "common/base/dtype.h"
#include "compressors/memory/error_feedback.h"

// Elementwise loops over float32, float16 and bfloat16 arrays; float64 where a comment says so.
// Arrays need no alignment, so that a payload is read where it lies; they must not overlap. Each
// element goes through the operations written here, each rounded, so the bits are the same on every
// target.

namespace bdn {

// The least i for which scale * x[i] is NaN or infinite, or x.n. float64 too (the product in
// float64). One pass over x.
size_t FirstNonFinite(ConstView x, float scale);

// to[i] = scale * from[i], rounded to to.dtype as dtype.h says. float64 to float64 too.
// REQUIRES: from.n == to.n.
void ConvertScaled(ConstView from, float scale, MutableView to);

// y[i] = y[i] + (scale * x[i]). y is float32, or float64 where x is.
void AddScaled(ConstView x, float scale, MutableView y);

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

#endif  // BANDONEON_COMPRESSORS_KERNELS_FLOAT_KERNELS_H_
