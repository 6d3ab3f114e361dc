#ifndef BANDONEON_KERNELS_SKETCH_KERNELS_H_
#define BANDONEON_KERNELS_SKETCH_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/draw.h"

// The loops of count sketches of sparse data: compressors/sparse_bitmap.h defines the bitmap, the
// cells and the place of an element in each row. An element is named by its index, modulo 2^32.
// Words and cells lie in a payload and need no alignment.

namespace bdn {

// CollectNonZeros and CollectOnes may write this many elements past those that they return.
inline constexpr size_t kOnesSlack = 8;

// The places of elements in a count sketch, which its draw chooses.
struct SketchPlaces {
  Draw draw;
  size_t rows = 0;   // 1, 3, 5 or 7
  size_t width = 0;  // of a row; at most 2^32
};

// Sets a bit for each element that is neither 0 nor -0, in words of 32 elements, and clears all
// others. Writes index first + i and value p[i] of these elements in order, and returns how many
// there are. It looks at the bits of the floats, as the caller's thread may treat subnormals as
// zeros. One pass. REQUIRES: index and value have room for n + kOnesSlack.
size_t CollectNonZeros(const float* p, size_t n, uint32_t first, std::byte* words, uint32_t* index,
                       float* value);

// Returns the number of bits that are set.
size_t CountOnes(const std::byte* words, size_t num_words);

// Writes first + i for each bit i that is set, in order, and returns how many there are. REQUIRES:
// index has room for that many + kOnesSlack.
size_t CollectOnes(const std::byte* words, size_t num_words, uint32_t first, uint32_t* index);

// Adds n elements to a cell of each row, in order: cell = clamp(cell + s * value). The rows follow
// each other in `cells`.
void AddToCells(const SketchPlaces& places, const uint32_t* index, const float* value, size_t n,
                std::byte* cells);

// Sets value[k] to the median over the rows of +0 + s * cell for element index[k], k < n.
void MedianOfCells(const SketchPlaces& places, const std::byte* cells, const uint32_t* index,
                   size_t n, float* value);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_SKETCH_KERNELS_H_
