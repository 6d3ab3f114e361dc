#ifndef BANDONEON_COMPRESSORS_SIGN_H_
#define BANDONEON_COMPRESSORS_SIGN_H_

#include <memory>

#include "compressors/codec.h"

namespace bdn {

// `sign`: decoded[i] is the sign of p[i] = scale * x[i]: -1, 0 or 1, and +0 for both zeros. What a
// server of sign momentum replies (arXiv 2411.17866, where the step is a constant times a sign):
// exact for an input of -1, 0 and 1. Zeros are kept, for what never had a gradient must not drift,
// and cost a second bitmap only where there are any. Otherwise onebit, whose magnitudes are those
// of p, is what loses less.
//
// Payload, little-endian; nothing for n = 0, else
//   uint32 zeros                      1 where an element is zero, else 0
//   uint32 negative[ceil(n / 32)]     bit i % 32 of word i / 32 is 1 where p[i] < 0
//   uint32 zero[ceil(n / 32)]         only where zeros is 1: the same where p[i] is 0 or -0;
//                                     one bit or more is 1, and none that is 1 in `negative`
// The bits past n in the last words are 0.
//
// One pass over x, or over g and then over g and the residual; one pass to decode.
std::shared_ptr<const Codec> MakeSign();

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SIGN_H_
