#ifndef BANDONEON_COMPRESSORS_DITHER_H_
#define BANDONEON_COMPRESSORS_DITHER_H_

#include <cstddef>
#include <memory>

#include "compressors/codec.h"

namespace bdn {

// The options of `dither`.
struct DitherOptions {
  size_t levels = 7;  // s
  bool natural = false;
  bool l2 = false;
};

// Makes `dither(levels=s,kind=linear|natural,norm=max|l2)`. It rounds each element at random to one
// of two neighbouring levels, so that its expectation is the element itself. With p the values to
// encode, m the norm of all of p and R(i) = Draw::Bits16(i):
//
//   linear:   levels k * m / s for k of 0..s           (QSGD, arXiv 1610.02132)
//   natural:  levels 0 and m * 2^(k - s) for k of 1..s (natural dithering, arXiv 1905.10988)
//   linear with s = 0: the two points -m and m, one bit an element; 1/2 + p / 2m of them are m
//
// norm=max keeps an element's error within a step. norm=l2 is QSGD's: with few levels and many
// elements its error exceeds its input, as that of the two points always may. These are unbiased,
// but not for error feedback.
//
// All of the arithmetic is pinned. It is in float32 unless the text says otherwise, and each
// operation is rounded:
//   m: max: the largest |p[i]|. l2: sqrt(S) rounded to float32 (S and sqrt in float64), where S is
//      the sum of p[i]^2 as onebit.h sums magnitudes (runs of 1024, sixteen lanes, float64 across
//      lanes and runs). If S is not finite, S is taken of p[i] * 2^-80 instead and sqrt(S)
//      multiplied by 2^80; else if S < 2^-80, of p[i] * 2^80, and multiplied by 2^-80.
//      m is at most 0x1.fffffp127; if it is under 2^-96, m is 0, all codes are 0 and the next
//      steps are left out.
//   linear:   g = (65536 * s) / m;  Z = |p| * g, rounded to the nearest integer, ties to even;
//             k = min(s, floor((Z + R) / 65536))
//             decoded = k * (m / s), with p's sign
//   natural:  g = 2^24 / m;  z = |p| * g;  l = 2^(25 - s);  w = z < l ? z + l : z;
//             w's bits, as an integer, + 128 * R + 64 have the exponent e (the bits above the low
//             23, less 127);  k = min(s, e - 25 + s + (z < l ? 0 : 1))
//             decoded = m * 2^(k - s), exact, with p's sign; 0 for k = 0
//   s = 0:    g = 32768 / m;  Z = p * g, rounded to the nearest integer, ties to even;
//             decoded = m where Z + R >= 32768, else -m
// So an expectation is off by at most 2^-17 of the distance between two levels, and by rounding. An
// element that is a level is kept, as far as g is exact.
//
// A code has b bits, the least with 2^(b - 1) > s: k, plus 2^(b - 1) where p < 0 and k > 0. With s
// = 0, b is 1 and a code of 1 means -m. The payload is little-endian, and empty for n = 0:
//   float32 m                     0 or 2^-96 to 0x1.fffffp127; where it is 0 all codes are
//   uint32  w[n / 512][b][16]     groups of 512 elements, in sixteen lanes: element 16 j + l of
//                                 group h has bits [jb, jb + b) of the string of 32 b bits that
//                                 w[h][0][l], w[h][1][l], ... make, low bits first
//   uint8   t[ceil(rb / 8)]       the last r = n mod 512: element j of them has bits [jb, jb + b)
//                                 of the string the bytes make, low bits first; the rest are 0
//
// Passes over memory: Encode reads x twice (norm, codes), EncodeFeedback g and the residual twice
// and writes the residual once; the second pass runs backward, so that it begins in the cache.
// Decoding is one pass, Validate one over the payload.
//
// REQUIRES: levels at most 127, for natural from 1 to 31 (so that no level is subnormal).
std::shared_ptr<const Codec> MakeDither(const DitherOptions& options);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_DITHER_H_
