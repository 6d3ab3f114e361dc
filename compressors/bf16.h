#ifndef BANDONEON_COMPRESSORS_BF16_H_
#define BANDONEON_COMPRESSORS_BF16_H_

#include <memory>

#include "compressors/codec.h"

namespace bdn {

// Makes `bf16`, which sends bfloat16, the upper half of a float32. The payload is scale * x[i] for
// i = 0..n-1, each computed in float32, then rounded to the nearest bfloat16 (ties to even,
// subnormals kept, saturated at the largest finite one) and written as two little-endian bytes. It
// has 2n bytes. Every element is finite.
std::shared_ptr<const Codec> MakeBf16();

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_BF16_H_
