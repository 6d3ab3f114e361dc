#ifndef BANDONEON_KERNELS_TWOBIT_KERNELS_H_
#define BANDONEON_KERNELS_TWOBIT_KERNELS_H_

#include <cstddef>

#include "kernels/block_magnitudes.h"
#include "kernels/feedback_blocks.h"

// Four levels, -3, -1, 1 and 3 times an element's magnitude, in two arrays of words as onebit_kernels.h
// has them: of `negative` a bit is 1 where the element is below zero, of `large` where it is beyond 2
// magnitudes, either way, and its level 3 of them.

namespace bdn {

// One pass. REQUIRES: p is finite; each magnitude >= 0, and 3 times it finite.
void PackTwoBits(const float* p, size_t n, BlockMagnitudes magnitudes, void* negative, void* large);

// The same, and p[i] <- p[i] - its level.
void PackTwoBitsAndSubtract(float* p, size_t n, BlockMagnitudes magnitudes, void* negative,
                            void* large);

// The same of a step whose p need not be there: feedback_blocks.h. Returns the elements that are done.
size_t PackTwoBitsOfFeedback(const FeedbackBlocks& step, void* negative, void* large);

// y[i] = factor * its magnitude, or factor * (3 * its magnitude) where the bit of `large` is 1, the
// sign flipped where that of `negative` is 1.
void UnpackTwoBits(const void* negative, const void* large, size_t n, BlockMagnitudes magnitudes,
                   float factor, float* y);
// y[i] += the same.
void UnpackTwoBitsAndAdd(const void* negative, const void* large, size_t n,
                         BlockMagnitudes magnitudes, float factor, float* y);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_TWOBIT_KERNELS_H_
