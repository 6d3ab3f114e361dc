#ifndef BANDONEON_COMPRESSORS_KERNELS_FLOAT_KERNELS_H_
#define BANDONEON_COMPRESSORS_KERNELS_FLOAT_KERNELS_H_

#include <cstddef>

#include "common/base/dtype.h"

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

// ag = a * g[i];  m = mu * momentum[i] + ag;  p = (ag + mu * m) + rho * residual[i]
// and without momentum (null):  p = ag + rho * residual[i].
struct AccumulateArgs {
  ConstView g;
  float scale;  // a
  float decay;  // rho
  float mu;     // read only with momentum
  float* residual;
  float* momentum;
};
// Whether every ag, m and p is finite. Writes nothing.
bool AccumulateIsFinite(const AccumulateArgs& args);
// residual <- p, momentum <- m.
void AccumulateApply(const AccumulateArgs& args);

// ag = a * g[i];  residual <- (((residual + decoded) - ag) - mu * m) / rho;  m <- (m - ag) / mu
// and without momentum:  residual <- ((residual + decoded) - ag) / rho.
void AccumulateUndo(const AccumulateArgs& args, const float* decoded);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_KERNELS_FLOAT_KERNELS_H_
