#ifndef BANDONEON_DEVICE_CODECS_DEVICE_DRAWN_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_DRAWN_H_

#include <memory>

#include "compressors/drawn.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// Make `randomk` and `blocks` (compressors/drawn.h). Encoding reads the drawn elements alone or,
// with a residual or replica, x twice and that once. Each element finds its own index among the
// values by arithmetic, so no list is made. Decoding takes one pass over y. No scratch.
std::unique_ptr<DeviceCodec> MakeDeviceRandomK(const RandomKOptions& options);
std::unique_ptr<DeviceCodec> MakeDeviceBlocks(const BlocksOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_DRAWN_H_
