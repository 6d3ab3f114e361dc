#ifndef BANDONEON_DEVICE_CODECS_DEVICE_DITHER_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_DITHER_H_

#include <memory>

#include "compressors/dither.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// Makes `dither` (compressors/dither.h). Encoding takes two passes over x and its residual or
// replica, one for the norm and one for the codes; decoding takes one. Scratch: 8 bytes; with
// norm=l2 it is 24 for each 1024 elements, whose sums one thread adds in order.
std::unique_ptr<DeviceCodec> MakeDeviceDither(const DitherOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_DITHER_H_
