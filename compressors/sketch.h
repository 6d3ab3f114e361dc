#ifndef BANDONEON_COMPRESSORS_SKETCH_H_
#define BANDONEON_COMPRESSORS_SKETCH_H_

#include <cstddef>
#include <memory>

#include "compressors/codec.h"

namespace bdn {

// The options of `sketch`.
struct SketchOptions {
  size_t rows = 3;  // 1, 3, 5 or 7
  double columns = 0;
};

// Makes `sketch(rows=R,columns=C)`, a codec for sparse tensors. It sends a bitmap of the elements
// that are not zero and a count sketch of those, which is read back by median (S2 Reducer, arXiv
// 2110.02140). A plain count sketch reads other elements' values out of the cells of a zero; the
// bitmap prevents that. Payloads can be added without decoding.
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
// it is alone in its cell in more than half of the rows. Any other element is off by the elements
// that it shares a cell with, as likely up as down. So this codec is for tensors with well below C
// * n elements that are not zero, and for error feedback. On dense data it can leave more than it
// took. A cell is a float32 sum in index order, rounded so.
//
// AddEncoded joins the bitmaps and adds the cells, in the order of the payloads, then multiplies
// each by the scale. That is the sketch of the sum (exactly so where no addition rounds), but its
// decoding is not the sum of the decoded payloads: a median is not linear. An element that cancels
// to zero keeps its bit.
//
// The residual is clamp(p - decoded), since the difference may overflow where cells did.
//
// Passes over memory: Encode reads p once and scatters over the cells; with a residual a second
// pass reads p, gathers and writes. Decode writes y once and gathers from the cells; DecodeAdd
// touches only the elements whose bits are set.
std::shared_ptr<const Codec> MakeSketch(const SketchOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SKETCH_H_
