#ifndef BANDONEON_KERNELS_PEEL_KERNELS_H_
#define BANDONEON_KERNELS_PEEL_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/sketch_kernels.h"

namespace bdn {

// The bytes that PeelCells needs for each cell, besides an entry of the queue.
inline constexpr size_t kPeelCellBytes = 12;

// PeelCells may write this many entries of the queue past the number of cells.
inline constexpr size_t kPeelQueueSlack = 4;

// The working memory of PeelCells, aligned to 8 bytes.
struct PeelScratch {
  std::byte* cells = nullptr;  // [kPeelCellBytes * the number of cells]
  uint32_t* queue = nullptr;   // [the number of cells + kPeelQueueSlack]
};

// Finds the values of n elements, whose indices rise, from a sketch of three rows, as
// compressors/exact_sketch.h defines it: an element that is alone in a cell is read from it and
// taken out of its other cells, in the order of a queue. value[k] is that of element index[k].
// Returns how many were not found: these have the median of their cells, as the others left them.
// REQUIRES: places.rows is 3; n and the number of cells are below 2^32.
size_t PeelCells(const SketchPlaces& places, const std::byte* cells, const uint32_t* index,
                 size_t n, const PeelScratch& scratch, float* value);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_PEEL_KERNELS_H_
