#ifndef BANDONEON_DEVICE_CODECS_DEVICE_SIGN_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_SIGN_H_

#include <memory>

#include "device/codecs/device_codec.h"

namespace bdn {

// Makes `sign` (compressors/sign.h). Encoding takes one pass over x; with a residual or replica, it
// takes one over x and then one over x and that. Decoding takes one pass. No scratch.
std::unique_ptr<DeviceCodec> MakeDeviceSign();

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_SIGN_H_
