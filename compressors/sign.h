#ifndef BANDONEON_COMPRESSORS_SIGN_H_
#define BANDONEON_COMPRESSORS_SIGN_H_

#include <memory>

#include "compressors/codec.h"

namespace bdn {

// Makes `sign`, whose decoded[i] is the sign of p[i] = scale * x[i]: -1, 0 or 1, and +0 for both
// zeros. A server of sign momentum replies with it (arXiv 2411.17866, where the step is a constant
// times a sign). It is exact for an input of -1, 0 and 1. Zeros are kept, since an element that
// never had a gradient must not drift; they cost a second bitmap only where there are any. For
// other uses onebit loses less, as its magnitudes are those of p.
//
// The payload is little-endian, and empty for n = 0; else
//   uint32 zeros                      1 where an element is zero, else 0
//   uint32 negative[ceil(n / 32)]     bit i % 32 of word i / 32 is 1 where p[i] < 0
//   uint32 zero[ceil(n / 32)]         only where zeros is 1: the same where p[i] is 0 or -0;
//                                     one bit or more is 1, and none that is 1 in `negative`
// The bits past n in the last words are 0.
//
// Encode takes one pass over x. EncodeFeedback takes one over g and then one over g and the
// residual. Decoding takes one pass.
std::shared_ptr<const Codec> MakeSign();

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_SIGN_H_
