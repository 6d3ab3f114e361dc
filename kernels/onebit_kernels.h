#ifndef BANDONEON_KERNELS_ONEBIT_KERNELS_H_
#define BANDONEON_KERNELS_ONEBIT_KERNELS_H_

#include <cstddef>

#include "kernels/block_magnitudes.h"
#include "kernels/feedback_blocks.h"

// Kernels of onebit and sign. Signs are packed 32 in a little-endian word: element i is bit i % 32
// of word i / 32, which is 1 where the element is below zero. Words need no alignment; the unused
// bits of the last are zero. Where zeros count, a second array of words has 1 where the element is
// 0 or -0.

namespace bdn {

// Writes the signs of p. One pass.
void PackSigns(const float* p, size_t n, void* words);

// Does the same, and sets p[i] <- p[i] - (p[i] < 0 ? -its magnitude : its magnitude).
void PackSignsAndSubtract(float* p, size_t n, BlockMagnitudes magnitudes, void* words);

// Does the same for a step whose p need not have been computed: feedback_blocks.h. Returns the
// number of elements done.
size_t PackSignsOfFeedback(const FeedbackBlocks& step, void* words);

// Sets y[i] = factor * its magnitude, with the sign flipped where the bit is 1.
void UnpackSigns(const void* words, size_t n, BlockMagnitudes magnitudes, float factor, float* y);
// Adds the same to y[i].
void UnpackSignsAndAdd(const void* words, size_t n, BlockMagnitudes magnitudes, float factor,
                       float* y);

// A report on the elements that were packed.
struct PackedSigns {
  bool has_zeros;
  bool finite;  // all of p
};
// Writes the signs and the zeros of p. One pass.
PackedSigns PackSignsAndZeros(const float* p, size_t n, void* words, void* zeros);
// Does the same, and sets p[i] <- p[i] - (-1, +0 or 1).
PackedSigns PackSignsAndZerosAndSubtract(float* p, size_t n, void* words, void* zeros);

// Sets y[i] = magnitude * (-1, +0 or 1). REQUIRES: no element is both negative and zero.
void UnpackSignsAndZeros(const void* words, const void* zeros, size_t n, float magnitude, float* y);
// Adds the same to y[i].
void UnpackSignsAndZerosAndAdd(const void* words, const void* zeros, size_t n, float magnitude,
                               float* y);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_ONEBIT_KERNELS_H_
