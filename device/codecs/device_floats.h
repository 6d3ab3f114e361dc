#ifndef BANDONEON_DEVICE_CODECS_DEVICE_FLOATS_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_FLOATS_H_

#include <memory>

#include "device/codecs/device_codec.h"

namespace bdn {

// `none`, `fp16` and `bf16`, of float32, float16 and bfloat16: compressors/dense_float.h. One pass
// over x, or over x and then over x and its memory; one to decode. No scratch.
std::unique_ptr<DeviceCodec> MakeDeviceFloats(DType wire);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_FLOATS_H_
