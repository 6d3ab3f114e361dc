#ifndef BANDONEON_DEVICE_CODECS_DEVICE_DITHER_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_DITHER_H_

#include <memory>

#include "compressors/dither.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// `dither`: compressors/dither.h. Two passes over x and its memory, norm and codes; one to decode.
// Scratch: 8 bytes, with norm=l2 24 for each 1024 elements, whose sums one thread adds in order.
std::unique_ptr<DeviceCodec> MakeDeviceDither(const DitherOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_DITHER_H_
