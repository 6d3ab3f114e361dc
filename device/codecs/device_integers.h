#ifndef BANDONEON_DEVICE_CODECS_DEVICE_INTEGERS_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_INTEGERS_H_

#include <memory>

#include "compressors/integer.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// Makes `int8`, `int4` and `int2` (compressors/integer.h). Encoding takes one pass over x; with a
// residual or replica, it takes one over x and then one over x and that. Where groups are longer
// than 4096, it takes two passes over x and, if there is one, the residual or replica. Decoding
// takes one pass. Scratch: 4 bytes for each group longer than 4096.
std::unique_ptr<DeviceCodec> MakeDeviceIntegers(const IntegerOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_INTEGERS_H_
