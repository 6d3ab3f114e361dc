#ifndef BANDONEON_KERNELS_TWOBIT_KERNELS_H_
#define BANDONEON_KERNELS_TWOBIT_KERNELS_H_

#include <cstddef>

#include "kernels/block_magnitudes.h"
#include "kernels/feedback_blocks.h"

// Kernels of twobit. An element becomes one of four levels, -3, -1, 1 and 3 times its magnitude, in
// two arrays of words laid out as in onebit_kernels.h. A bit of `negative` is 1 where the element
// is below zero. A bit of `large` is 1 where the element is further than 2 magnitudes from zero,
// either way, so that its level is 3 of them.

namespace bdn {

// Writes both arrays of words. One pass. REQUIRES: p is finite; each magnitude is >= 0, and 3 times
// it is finite.
void PackTwoBits(const float* p, size_t n, BlockMagnitudes magnitudes, void* negative, void* large);

// Does the same, and sets p[i] <- p[i] - its level.
void PackTwoBitsAndSubtract(float* p, size_t n, BlockMagnitudes magnitudes, void* negative,
                            void* large);

// Does the same for a step whose p need not have been computed: feedback_blocks.h. Returns the
// number of elements done.
size_t PackTwoBitsOfFeedback(const FeedbackBlocks& step, void* negative, void* large);

// Sets y[i] = factor * its magnitude, or factor * (3 * its magnitude) where the bit of `large` is
// 1, with the sign flipped where that of `negative` is 1.
void UnpackTwoBits(const void* negative, const void* large, size_t n, BlockMagnitudes magnitudes,
                   float factor, float* y);
// Adds the same to y[i].
void UnpackTwoBitsAndAdd(const void* negative, const void* large, size_t n,
                         BlockMagnitudes magnitudes, float factor, float* y);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_TWOBIT_KERNELS_H_
