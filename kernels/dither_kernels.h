#ifndef BANDONEON_KERNELS_DITHER_KERNELS_H_
#define BANDONEON_KERNELS_DITHER_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/draw.h"

// The loops of compressors/dither.h, which defines levels, codes and their layout. `codes` points
// to the codes of the first element, which begins a group of 512; they need no alignment.

namespace bdn {

// The levels of one payload. `norm` is m of compressors/dither.h, `natural` its kind.
struct DitherGrid {
  uint32_t levels = 0;  // 0: the two points -norm and norm
  bool natural = false;
  float norm = 0;

  uint32_t bits() const;
};

inline constexpr size_t kDitherGroup = 512;

// Writes the codes of p, whose elements are first, first + 1, ... of the array. One pass. REQUIRES:
// grid.norm > 0, first is a multiple of 512.
void DitherPack(const float* p, size_t n, const DitherGrid& grid, const Draw& draw, size_t first,
                void* codes);
// Does the same, and sets p[i] <- ClampToFinite(p[i] - decoded[i]).
void DitherPackAndSubtract(float* p, size_t n, const DitherGrid& grid, const Draw& draw,
                           size_t first, void* codes);

// Sets y[i] = scale * decoded[i].
void DitherUnpack(const void* codes, size_t n, const DitherGrid& grid, float scale, float* y);
// Adds: y[i] += scale * decoded[i].
void DitherUnpackAndAdd(const void* codes, size_t n, const DitherGrid& grid, float scale, float* y);

// Returns whether DitherPack can have written every code, and the bits past the last code are 0.
bool DitherCodesAreGood(const void* codes, size_t n, const DitherGrid& grid);

// Returns the bytes of the codes of n elements.
size_t DitherCodeBytes(size_t n, uint32_t bits);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_DITHER_KERNELS_H_
