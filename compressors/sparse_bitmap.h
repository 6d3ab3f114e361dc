#ifndef BANDONEON_COMPRESSORS_SPARSE_BITMAP_H_
#define BANDONEON_COMPRESSORS_SPARSE_BITMAP_H_

#include <algorithm>
#include <bit>
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

// The position of an element in a row: a cell, counted over all rows * width, and the element's
// sign as a float's top bit.
struct SketchPlace {
  size_t cell;
  uint32_t sign;

  float Signed(float value) const {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ sign);
  }
  // Returns the element's value as the cell has it: s * cell, and never -0, so that a median is
  // unique.
  float Estimate(float value) const { return 0.0f + Signed(value); }
};

// The shape of a payload of n elements.
struct SketchShape {
  size_t n = 0;
  size_t rows = 0;
  size_t width = 0;  // at most 2^32

  size_t NumWords() const { return DivideUp(n, 32); }
  size_t NumCells() const { return rows * width; }
  size_t CellsOffset() const { return 8 + 4 * NumWords(); }
  size_t Bytes() const { return CellsOffset() + sizeof(float) * NumCells(); }

  SketchPlace Place(const Draw& draw, size_t i, size_t row) const {
    const uint32_t word = draw.Word(static_cast<uint32_t>(rows * i + row));
    return {row * width + static_cast<size_t>(uint64_t{word} * width >> 32), word << 31};
  }
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

// Returns the draw that placed the payload's elements.
inline Draw SketchDraw(ByteSpan in) {
  return Draw::FromKeys(LoadLittle<uint32_t>(in, 0), LoadLittle<uint32_t>(in, 4));
}

// Returns the number of bits that are set.
size_t CountBits(const SketchShape& shape, ByteSpan in);

// Calls visit(i) for the bits that are set in words [begin / 32, ceil(end / 32)), in order.
// REQUIRES: begin is a multiple of 32, and so is end unless it is n.
template <typename Visit>
void ForEachBit(ByteSpan in, size_t begin, size_t end, const Visit& visit) {
  for (size_t at = begin; at < end; at += 32) {
    for (auto word = LoadLittle<uint32_t>(in, 8 + at / 8); word != 0; word &= word - 1) {
      visit(at + static_cast<size_t>(std::countr_zero(word)));
    }
  }
}

// Sets y = scale * decoded, where value(i) returns what element i decodes to. It is called for the
// bits that are set, in order. The other elements become +0.
template <typename Value>
void DecodeBits(ByteSpan in, float scale, MutableView y, Value value) {
  float tile[kTile];
  ForEachTile(0, y.n, [&](size_t at, size_t count) {
    float* const to = y.dtype == DType::kFloat32 ? y.f32() + at : tile;
    std::memset(to, 0, count * sizeof(float));
    ForEachBit(in, at, at + count, [&](size_t i) { to[i - at] = scale * value(i); });
    if (to == tile) ConvertScaled({tile, DType::kFloat32, count}, 1.0f, y.Sub(at, count));
  });
}

// Adds scale * decoded to y at the bits that are set; nothing else is touched.
template <typename Value>
void DecodeAddBits(ByteSpan in, float scale, MutableView y, Value value) {
  float* const to = y.f32();
  ForEachBit(in, 0, y.n, [&](size_t i) { to[i] = to[i] + scale * value(i); });
}

// Leaves clamp(p - decoded) in the residual. A cell that other elements filled may be further from
// p than the largest float, so the difference is clamped. REQUIRES: `in` was encoded from `source`.
template <typename Value>
void TakeBits(ByteSpan in, EncodeSource& source, Value value) {
  ForEachTile(0, source.n(), [&](size_t at, size_t count) {
    float* const p = source.Take(at, count);
    ForEachBit(in, at, at + count,
               [&](size_t i) { p[i - at] = ClampToFinite(p[i - at] - value(i)); });
  });
}

// Returns the middle of an odd number of values, by a sorting network without branches.
template <size_t kSize>
float Median(float (&values)[kSize]) {
  for (size_t end = kSize; end > 1; --end) {
    for (size_t i = 0; i + 1 < end; ++i) {
      const float low = std::min(values[i], values[i + 1]);
      values[i + 1] = std::max(values[i], values[i + 1]);
      values[i] = low;
    }
  }
  return values[kSize / 2];
}

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SPARSE_BITMAP_H_
