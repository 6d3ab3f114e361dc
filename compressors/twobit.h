#ifndef BANDONEON_COMPRESSORS_TWOBIT_H_
#define BANDONEON_COMPRESSORS_TWOBIT_H_

#include <memory>

#include "compressors/codec.h"

namespace bdn {

// Makes `twobit(block=B)`. Each element becomes the nearest of four levels, -3, -1, 1 and 3 times a
// scale of its block of B elements. B = 0, the default, makes the whole array one block. With p[i]
// = scale * x[i] in float32:
//
//   m[b] = the mean of |p[i]| over block b, as onebit.h has it
//   s[b] = bfloat16(min(0.624 * m[b], 0x1.54p126))     0.624 as float32, one product
//   decoded[i] = (|p[i]| > 2 s[b] ? 3 : 1) * s[b], negative where p[i] < 0   (so 0 and -0 count as
//                                                                            positive)
//
// 0.624 m is 0.498 of a normal distribution's standard deviation: the step of the uniform quantizer
// of four levels that loses least of such a distribution (J. Max, Quantizing for minimum
// distortion, 1960). It leaves 0.12 of the energy, where onebit leaves 0.36. A block of zeros
// decodes to zeros. 0x1.54p126 is the largest bfloat16 whose threefold is finite. s, 2 s and 3 s
// are exact.
//
// The payload is little-endian:
//   bfloat16 s[ceil(n / B)]          0 to 0x1.54p126, not -0; with B = 0 one, or none for n = 0
//   uint16   zero                    only where the number of scales is odd
//   uint32   negative[ceil(n / 32)]  bit i % 32 of word i / 32 is 1 where decoded[i] is negative
//   uint32   large[ceil(n / 32)]     the same where it is three scales
// The bits past n in the last words are 0.
//
// Passes over memory: as onebit. One pass to decode.
//
// REQUIRES: block is 0 or a multiple of 32.
std::shared_ptr<const Codec> MakeTwoBit(size_t block);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_TWOBIT_H_
