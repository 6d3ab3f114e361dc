#ifndef BANDONEON_COMPRESSORS_SPARSE_BITMAP_H_
#define BANDONEON_COMPRESSORS_SPARSE_BITMAP_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/draw.h"
#include "common/base/endian.h"
#include "compressors/codec.h"
#include "compressors/payload.h"
#include "kernels/clamp_to_finite.h"
#include "kernels/float_kernels.h"
#include "kernels/sketch_kernels.h"

// The common part of `sketch` and `exactsketch`: their payload, its encoding and its sum, and the
// loops that put decoded values into an array. Internal to compressors/.
//
// The payload is a bitmap of the elements that are not zero and a count sketch of those: `rows`
// rows of `width` cells, in each of which an element has one cell and one sign.
//
//   uint32  k0, k1                 the draw's keys: equal in payloads that add up
//   uint32  bitmap[ceil(n / 32)]   bit i % 32 of word i / 32 is 1 where p[i] is not 0 or -0;
//                                  the bits past n in the last word are 0
//   float32 cell[rows * width]     row by row; finite
//
// In row j element i has word w = Draw::Word(rows * i + j mod 2^32), the cell (w * width) >> 32 of
// the row (the product in 64 bits), and the sign s = -1 where w is odd, else 1. Cells start from
// +0; elements are added in index order, each to a cell of every row:
//
//   cell = clamp(cell + s * p[i])
//
// in float32, where clamp(v) is v, or the largest finite float of its sign where v is infinite.

namespace bdn {

// The shape of a payload of n elements.
struct SketchShape {
  size_t n = 0;
  size_t rows = 0;
  size_t width = 0;  // at most 2^32

  size_t NumWords() const { return DivideUp(n, 32); }
  size_t NumCells() const { return rows * width; }
  size_t CellsOffset() const { return 8 + 4 * NumWords(); }
  size_t Bytes() const { return CellsOffset() + sizeof(float) * NumCells(); }
};

// Writes the payload of the source's p. Takes one pass over p, and over the cells a write and then
// a scatter. InvalidArgument names an element that is not finite. REQUIRES: out holds
// shape.Bytes().
absl::Status EncodeSketch(const SketchShape& shape, EncodeSource& source, const Draw& draw,
                          MutableByteSpan out);

// Checks the size, the bits past n, and that the cells are finite.
absl::Status ValidateSketch(const Codec& codec, const SketchShape& shape, ByteSpan in);

// Joins the bitmaps, adds the cells in order from +0, then multiplies them by `scale`.
// FailedPrecondition names the first payload whose keys are not those of the first; InvalidArgument
// names a cell whose sum is not finite. REQUIRES: as Codec::AddEncoded.
absl::StatusOr<size_t> AddSketches(const Codec& codec, const SketchShape& shape,
                                   std::span<const ByteSpan> in, float scale, MutableByteSpan out);

// Returns the places of the elements of a payload.
inline SketchPlaces PlacesOf(const SketchShape& shape, ByteSpan in) {
  const Draw draw = Draw::FromKeys(LoadLittle<uint32_t>(in, 0), LoadLittle<uint32_t>(in, 4));
  return {.draw = draw, .rows = shape.rows, .width = shape.width};
}

// The elements of a tile whose bits are set: index[k] - at is an element's place in the tile that
// begins at `at` (modulo 2^32), and value[k] the number that it decodes to.
struct TileValues {
  size_t size = 0;
  const uint32_t* index = nullptr;
  const float* value = nullptr;
};

// DecodeBits, DecodeAddBits and TakeBits call values(at, count), which returns the elements of the
// tile [at, at + count), for all tiles in order.

// Sets y = scale * decoded. The elements whose bits are not set become +0.
template <typename Values>
void DecodeBits(float scale, MutableView y, Values&& values) {
  float tile[kTile];
  ForEachTile(0, y.n, [&](size_t at, size_t count) {
    float* const to = y.dtype == DType::kFloat32 ? y.f32() + at : tile;
    std::memset(to, 0, count * sizeof(float));
    const TileValues found = values(at, count);
    for (size_t k = 0; k < found.size; ++k) {
      to[found.index[k] - static_cast<uint32_t>(at)] = scale * found.value[k];
    }
    if (to == tile) ConvertScaled({tile, DType::kFloat32, count}, 1.0f, y.Sub(at, count));
  });
}

// Adds scale * decoded to y at the bits that are set; nothing else is touched.
template <typename Values>
void DecodeAddBits(float scale, MutableView y, Values&& values) {
  ForEachTile(0, y.n, [&](size_t at, size_t count) {
    float* const to = y.f32() + at;
    const TileValues found = values(at, count);
    for (size_t k = 0; k < found.size; ++k) {
      float& element = to[found.index[k] - static_cast<uint32_t>(at)];
      element = element + scale * found.value[k];
    }
  });
}

// Leaves clamp(p - decoded) in the residual. A cell that other elements filled may be further from
// p than the largest float, so the difference is clamped. REQUIRES: `values` decodes the payload
// that was encoded from `source`.
template <typename Values>
void TakeBits(EncodeSource& source, Values&& values) {
  ForEachTile(0, source.n(), [&](size_t at, size_t count) {
    float* const p = source.Take(at, count);
    const TileValues found = values(at, count);
    for (size_t k = 0; k < found.size; ++k) {
      float& element = p[found.index[k] - static_cast<uint32_t>(at)];
      element = ClampToFinite(element - found.value[k]);
    }
  });
}

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SPARSE_BITMAP_H_
