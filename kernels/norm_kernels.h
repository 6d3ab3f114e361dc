#ifndef BANDONEON_KERNELS_NORM_KERNELS_H_
#define BANDONEON_KERNELS_NORM_KERNELS_H_

#include <cstddef>

// What codecs need to know of a whole array before they encode it. Sums go through sixteen virtual
// lanes, so the bits are the same on every target.

namespace bdn {

// total + the sum of |p[i]|, by sixteen virtual lanes: inside each run of 1024 elements element i
// is added to lane i % 16 in float32; the lanes join in float64, l with l + 8, then 4, 2 and 1;
// runs are added to `total` in order. A longer sum may be taken in pieces of a multiple of 1024.
// One pass.
double AddMagnitudes(double total, const float* p, size_t n);

// means[b] = the mean of |p| over elements [b * block, min(n, (b + 1) * block)): the float64 quotient
// of AddMagnitudes(0, them) and their number, rounded to float32. False where one is not finite, as
// sums of finite elements can be. One pass. REQUIRES: block > 0.
bool MeanMagnitudes(const float* p, size_t n, size_t block, float* means);

// total + the sum of p[i]^2, as AddMagnitudes adds |p[i]|. One pass.
double AddSquares(double total, const float* p, size_t n);

// The largest |p[i]|, 0 for none; NaN where a p[i] is. One pass.
float LargestMagnitude(const float* p, size_t n);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_NORM_KERNELS_H_
