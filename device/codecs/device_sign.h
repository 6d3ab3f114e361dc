#ifndef BANDONEON_DEVICE_CODECS_DEVICE_SIGN_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_SIGN_H_

#include <memory>

#include "device/codecs/device_codec.h"

namespace bdn {

// `sign`: compressors/sign.h. One pass over x, or over x and then over x and its memory; one to
// decode. No scratch.
std::unique_ptr<DeviceCodec> MakeDeviceSign();

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_SIGN_H_
