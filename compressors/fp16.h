#ifndef BANDONEON_COMPRESSORS_FP16_H_
#define BANDONEON_COMPRESSORS_FP16_H_

#include <memory>

#include "compressors/codec.h"

namespace bdn {

// Makes `fp16`, which sends IEEE half precision. The payload is scale * x[i] for i = 0..n-1, each
// computed in float32, then rounded to the nearest half (ties to even, subnormals kept, saturated
// at +-65504) and written as two little-endian bytes. It has 2n bytes. Every element is finite.
std::shared_ptr<const Codec> MakeFp16();

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_FP16_H_
