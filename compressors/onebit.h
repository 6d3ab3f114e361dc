#ifndef BANDONEON_COMPRESSORS_ONEBIT_H_
#define BANDONEON_COMPRESSORS_ONEBIT_H_

#include <memory>

#include "compressors/codec.h"

namespace bdn {

// Makes `onebit(block=B, scale=fp32|bf16)`. It sends the sign of each element, and one mean
// magnitude for each block of B elements. B = 0, the default, makes the whole array one block. With
// p[i] = scale * x[i] in float32 and block b holding elements [bB, min(n, bB + B)):
//
//   s[b] = (sum of |p[i]| over block b) / (number of elements of block b)
//   decoded[i] = -s[b] where p[i] < 0, else s[b]           (so 0 and -0 count as positive)
//
// Scaled sign compression with error feedback: arXiv 1901.09847 and, both ways, 1905.10936.
//
// The sum is pinned: blocks are cut in runs of 1024 elements from their start. Inside a run element
// j of the run is added to lane j mod 16, in float32, in order, from +0. The 16 lanes become
// float64 and are joined: lane l += lane l + 8 for l < 8, then + 4 for l < 4, + 2, + 1. Runs are
// added in order in float64 from 0. If the sum of a block is not finite (it can overflow float32
// where every element is finite), it is taken again over |p[i] * 2^-8| and multiplied by 2^8. s is
// the float64 quotient rounded to float32, and at most the largest finite float32. With scale=bf16
// it is rounded to bfloat16 from there, to nearest even, and at most the largest finite one: 1.25
// bits an element for 1.5 at B = 64.
//
// The payload is little-endian:
//   float32 s[ceil(n / B)]      finite, not negative, not -0; with B = 0 one, or none for n = 0.
//                               With scale=bf16 bfloat16, and a uint16 of 0 where they are odd in
//                               number
//   uint32  w[ceil(n / 32)]     bit i % 32 of word i / 32 is 1 where decoded[i] is negative;
//                               the bits past n in the last word are 0
//
// Passes over memory: where blocks fit in a tile (4,096 elements), Encode reads x once;
// EncodeFeedback reads g twice (all of it must be finite before anything changes) and the residual
// once, and writes the residual once. With larger blocks, Encode reads x twice (sum, signs), and
// EncodeFeedback reads g and the residual twice. The second pass runs backward, so that it begins
// in the cache. Decoding is one pass.
//
// REQUIRES: block is 0 or a multiple of 32.
std::shared_ptr<const Codec> MakeOneBit(size_t block, bool bfloat_scales = false);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_ONEBIT_H_
