#ifndef BANDONEON_COMPRESSORS_INTEGER_H_
#define BANDONEON_COMPRESSORS_INTEGER_H_

#include <cstddef>
#include <memory>

#include "compressors/codec.h"

namespace bdn {

// The options of `int8`, `int4` and `int2`.
struct IntegerOptions {
  int bits = 8;  // 8, 4 or 2
  // The number of elements that share a scale: a multiple of 32.
  size_t group = 128;
  bool hadamard = false;
  bool nearest = false;
};

// Returns S of the format below, for other encoders of the same payloads. The format is that of
// `int8`, `int4` and `int2` (group=G, hadamard=0|32, round=stochastic|nearest), the group quantizer
// of SDP4Bit (arXiv 2410.15526). It is symmetric: k bits hold one of the 2^k - 1 whole numbers from
// -L to L, L = 2^(k-1) - 1 = 127, 7, 1. Group g holds elements [gG, min(n, gG + G)) of c, which is
// p, or with hadamard=32 its transform. The arithmetic is in float32, with one rounding an
// operation:
//
//   m    = max |c[i]| over the group
//   s    = min(m / L, S)                             where m >= 2^-100
//   z    = c[i] * (L / m)                            one division a group
//   q[i] = nearest(z), ties to even                  where round=nearest
//        = floor(z + (Bits16(i) + 0.5) / 65536)      where round=stochastic (common/base/draw.h)
//
// q[i] is limited to -L and L, and i is the element's index in the array. Where m < 2^-100, s and
// all q are 0, so that 1 / m never overflows. S is the largest float with L * S finite; with
// hadamard the largest with 32 * (L * S) finite. The decoder computes
//
//   c[i] = q[i] * s                                  q as float32, 0 as +0
//
// and p is c, or c transformed back.
//
// Stochastic rounding is unbiased to 2^-17 of a level; its mean over draws is p.
//
// hadamard=32: each whole block of 32 elements becomes c = H (2^-5 * p) and goes back by p = H c,
// with H the unnormalised Walsh-Hadamard matrix, H H = 32 I. It spreads an outlier over its block.
// The factor comes first so that no sum overflows. The last n mod 32 elements are left as they are.
// H of a block: for stride 1, 2, 4, 8, 16 in this order, each pair (a, b) that lies `stride` apart
// in a run of 2 * stride becomes (a + b, a - b). Where S limits a scale (m > L * S, which takes
// elements above 2^123), the decoded values are smaller than p, by up to 32 times; they are always
// finite. A residual p - decoded that overflows becomes the largest finite float of its sign. Sums
// of payloads are taken over c and transformed back once (Transforms()).
//
// The payload is little-endian:
//   float32 s[ceil(n / G)]     0, or from 2^-100 / L to S; not -0
//   codes                      32 elements take 4k bytes: field f of byte b, its bits fk to fk + k,
//                              is element b + 4kf of the 32, two's complement. Of the last
//                              n mod 32 elements' bytes only the first that hold an element are
//                              sent: min(4k, n mod 32). The code -2^(k-1) is invalid; codes of a
//                              group whose s is 0 and fields past n are 0
//
// Passes over memory: Encode reads x once where G <= 4096, else twice. EncodeFeedback reads g twice
// and the residual once (where G > 4096, g three times and the residual twice), and writes the
// residual once. Decoding is one pass.
float LargestIntegerScale(const IntegerOptions& options);

// Makes the codec. REQUIRES: bits is 8, 4 or 2; group is a multiple of 32, not 0.
std::shared_ptr<const Codec> MakeInteger(const IntegerOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_INTEGER_H_
