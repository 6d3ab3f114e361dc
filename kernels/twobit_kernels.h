#ifndef BANDONEON_KERNELS_TWOBIT_KERNELS_H_
#define BANDONEON_KERNELS_TWOBIT_KERNELS_H_

#include <cstddef>

// Four levels, -3, -1, 1 and 3 times a magnitude, in two arrays of words as onebit_kernels.h has
// them: of `negative` a bit is 1 where the element is below zero, of `large` where it is beyond 2
// magnitudes, either way, and its level 3 of them.

namespace bdn {

// One pass. REQUIRES: p is finite; magnitude >= 0, and 3 * magnitude is finite.
void PackTwoBits(const float* p, size_t n, float magnitude, void* negative, void* large);

// The same, and p[i] <- p[i] - its level.
void PackTwoBitsAndSubtract(float* p, size_t n, float magnitude, void* negative, void* large);

// y[i] = large_value or small_value, as the bits of `large` say, its sign flipped where that of
// `negative` is 1.
void UnpackTwoBits(const void* negative, const void* large, size_t n, float small_value,
                   float large_value, float* y);
// y[i] += the same.
void UnpackTwoBitsAndAdd(const void* negative, const void* large, size_t n, float small_value,
                         float large_value, float* y);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_TWOBIT_KERNELS_H_
