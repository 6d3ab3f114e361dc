#ifndef BANDONEON_KERNELS_NORM_KERNELS_H_
#define BANDONEON_KERNELS_NORM_KERNELS_H_

#include <cstddef>

// Norms and sums that codecs need of a whole array before they encode it. Sums go through sixteen
// virtual lanes, so the bits are the same on every target.

namespace bdn {

// Returns total + the sum of |p[i]|, by sixteen virtual lanes: inside each run of 1024 elements,
// element i is added to lane i % 16 in float32; the lanes join in float64, l with l + 8, then 4, 2
// and 1; the runs' sums are added to `total` in order. A longer sum may be taken in pieces of a
// multiple of 1024. One pass.
double AddMagnitudes(double total, const float* p, size_t n);

// Sets means[b] to the mean of |p| over elements [b * block, min(n, (b + 1) * block)): the float64
// quotient of AddMagnitudes(0, these elements) and their number, rounded to float32. Returns false
// where a mean is not finite, as sums of finite elements can be. One pass. REQUIRES: block > 0.
bool MeanMagnitudes(const float* p, size_t n, size_t block, float* means);

// Returns total + the sum of p[i]^2, which is added as AddMagnitudes adds |p[i]|. One pass.
double AddSquares(double total, const float* p, size_t n);

// Returns the largest |p[i]|, 0 for no elements, and NaN where a p[i] is NaN. One pass.
float LargestMagnitude(const float* p, size_t n);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_NORM_KERNELS_H_
