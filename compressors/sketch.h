#ifndef BANDONEON_COMPRESSORS_SKETCH_H_
#define BANDONEON_COMPRESSORS_SKETCH_H_

#include <cstddef>
#include <memory>

#include "compressors/codec.h"

namespace bdn {

struct SketchOptions {
  size_t rows = 3;  // 1, 3, 5 or 7
  double columns = 0;
};

// `sketch(rows=R,columns=C)`: for sparse tensors, which elements are not zero and a count sketch of
// those, read back by median (S2 Reducer, arXiv 2110.02140). The bitmap keeps what is zero from
// being read out of a cell, which a plain count sketch does, and payloads add up undecoded.
//
// sparse_bitmap.h has the payload and the encoder: R rows, each of width
//
//   min(n, floor(C))       where C > 1
//   max(1, ceil(C * n))    else (the product in float64), and 0 for n = 0
//
// Decoding:
//
//   decoded[i] = the median over the rows of +0 + s * cell where bit i is set, else +0
//
// (+0 + x is x, but never -0.) clamp is sparse_bitmap.h's. An element is exact, bit for bit, where
// it is alone in its cell in more than half of the rows. Where not, it is off by what it shares a
// cell with, as likely up as down: so this is for support well below C * n, and with error
// feedback. On dense data it can leave more than it took. Rounding: a cell is a float32 sum in
// index order.
//
// AddEncoded joins the bitmaps and adds the cells, in the order of the payloads, then multiplies
// each by the scale. That is the sketch of the sum (exactly so where no addition rounds), but not
// the sum of what was decoded: a median is not linear. An element that cancels keeps its bit.
//
// The residual is clamp(p - decoded): where cells overflowed the difference may too.
//
// Passes over memory: Encode reads p once and scatters over the cells; with a residual a second
// pass reads p, gathers and writes. Decode writes y once and gathers from the cells; DecodeAdd
// touches only the elements whose bits are set.
std::shared_ptr<const Codec> MakeSketch(const SketchOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SKETCH_H_
