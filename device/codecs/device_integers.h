#ifndef BANDONEON_DEVICE_CODECS_DEVICE_INTEGERS_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_INTEGERS_H_

#include <memory>

#include "compressors/integer.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// `int8`, `int4` and `int2`: compressors/integer.h. One pass over x, or over x and then over x and
// its memory; another over both where groups are longer than 4096. One to decode. Scratch: 4 bytes
// for each of such groups.
std::unique_ptr<DeviceCodec> MakeDeviceIntegers(const IntegerOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_INTEGERS_H_
