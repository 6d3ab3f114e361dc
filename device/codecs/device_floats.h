#ifndef BANDONEON_DEVICE_CODECS_DEVICE_FLOATS_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_FLOATS_H_

#include <memory>

#include "device/codecs/device_codec.h"

namespace bdn {

// Makes `none`, `fp16` and `bf16`, of float32, float16 and bfloat16 (compressors/dense_float.h).
// Encoding takes one pass over x; with a residual or replica, it takes one over x and then one over
// x and that. Decoding takes one pass. No scratch.
std::unique_ptr<DeviceCodec> MakeDeviceFloats(DType wire);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_FLOATS_H_
