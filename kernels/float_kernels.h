#ifndef BANDONEON_KERNELS_FLOAT_KERNELS_H_
#define BANDONEON_KERNELS_FLOAT_KERNELS_H_

#include <cstddef>
#include <span>

#include "common/base/dtype.h"

// Elementwise loops over float32, float16 and bfloat16 arrays; also float64 where a comment says
// so. Arrays need no alignment, so that a payload is read where it lies; they must not overlap.
// Each element goes through the operations written here, each rounded, so the bits are the same on
// every target.

namespace bdn {

// Returns the least i for which scale * x[i] is NaN or infinite, or x.n. Takes float64 too (the
// product in float64). One pass over x.
size_t FirstNonFinite(ConstView x, float scale);

// Sets to[i] = scale * from[i], rounded to to.dtype as dtype.h says. Takes float64 to float64 too.
// REQUIRES: from.n == to.n.
void ConvertScaled(ConstView from, float scale, MutableView to);

// Does ConvertScaled, and returns whether every scale * from[i] is finite. `to` is written either
// way.
bool ConvertFinite(ConstView from, float scale, MutableView to);

// Sets to[i] = p[i], rounded to to.dtype, and p[i] <- p[i] - to[i]. REQUIRES: p is finite and has
// to.n elements.
void ConvertAndSubtract(float* p, MutableView to);

// Sets y[i] = y[i] + (scale * x[i]). y is float32, or float64 where x is.
void AddScaled(ConstView x, float scale, MutableView y);

// One of several arrays that are added up, with its factor.
struct ScaledFloats {
  const float* data = nullptr;
  float scale = 1.0f;
};
// Sets y[i] = (x[0].scale * x[0].data[i]) + (x[1].scale * x[1].data[i]) + ..., added in order: the
// bits are those of ConvertScaled of the first and AddScaled of the others, in one pass. REQUIRES:
// x is not empty.
void SumScaled(std::span<const ScaledFloats> x, float* y, size_t n);

// Sets to[i] = scale * from[i], written past the caches. That causes less traffic where `to` does
// not fit in them, as it is not read before it is written, and more where it is needed soon after.
// `to` is aligned as floats are.
void StreamScaled(const float* from, float scale, float* to, size_t n);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_FLOAT_KERNELS_H_
