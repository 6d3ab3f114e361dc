#ifndef BANDONEON_COMPRESSORS_DRAWN_H_
#define BANDONEON_COMPRESSORS_DRAWN_H_

#include <cstddef>
#include <memory>

#include "compressors/codec.h"

namespace bdn {

// The options of `randomk` and `blocks`. `blocks(ratio=R,size=S)` sends some blocks of S elements,
// the last one maybe shorter, which all nodes draw alike; the other blocks decode to 0. It is the
// globally randomized blockwise sparsifier of CSER (arXiv 2007.13221). `randomk(ratio=R)` is the
// same with blocks of one element. No index is sent, payloads that were drawn alike can be added
// without decoding, and a reply to all of them loses nothing of the sum.
//
// The blocks are drawn so, with w[j] = Draw::Word(j), B = ceil(n / S), u = w[0] / 2^32:
//
//   K        = min(B, floor(R * B + u))
//   first[j] = floor(j * B / K)                                               for 0 <= j <= K
//   x[j]     = first[j] + floor(w[2 + j] * (first[j + 1] - first[j]) / 2^32)   for 0 <= j < K
//   block[j] = (x[j] + floor(w[1] * B / 2^32)) mod B
//
// K, whose product and sum are in float64, is R * B on average and may be 0. `first` cuts [0, B)
// into K strata, x[j] is one block of stratum j, and one phase turns all of them. So no block is
// drawn twice, and each is drawn with the same probability K / B (to 2^-32).
//
// d[i] = p[i] + 0 in drawn blocks (-0 becomes 0), +0 elsewhere. With `unbiased`, so that the mean
// of d over draws is p,
//
//   d[i] = clamp(p[i] * f) + 0,   f = clamp(1 / R as float32)
//
// where clamp(v) is v, or the largest finite float of its sign where v is infinite.
//
// The payload is little-endian, and empty for n = 0:
//   uint32  k0, k1     the draw's keys
//   float32 value[]    d of the drawn blocks by rising block number, one after the other; finite
//
// Encode reads only the drawn elements: no other is checked to be finite. With a residual it takes
// two passes over the input and one over the residual. Decode writes y once; DecodeAdd and
// AddEncoded touch the drawn elements alone. Working memory: 8 bytes for each drawn block.
//
// REQUIRES: 0 < R <= 1, S >= 1; n < 2^31 in every call.
struct RandomKOptions {
  double ratio = 0;
  bool unbiased = false;
};
std::shared_ptr<const Codec> MakeRandomK(const RandomKOptions& options);

// The options of `blocks`, which the comment above describes.
struct BlocksOptions {
  double ratio = 0;
  size_t size = 1024;
};
std::shared_ptr<const Codec> MakeBlocks(const BlocksOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_DRAWN_H_
