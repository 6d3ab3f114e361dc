#ifndef BANDONEON_COMPRESSORS_NONE_H_
#define BANDONEON_COMPRESSORS_NONE_H_

#include <memory>

#include "compressors/codec.h"

namespace bdn {

// Makes `none`, which does not compress. The payload is scale * x[i] for i = 0..n-1, each a
// little-endian float32 (also for float16 and bfloat16 input, which it holds exactly where the
// scale is 1), or a little-endian float64 for float64 input. It has 4n or 8n bytes. Every element
// is finite.
std::shared_ptr<const Codec> MakeNone();

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_NONE_H_
