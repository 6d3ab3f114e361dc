#ifndef BANDONEON_DEVICE_CODECS_DEVICE_DRAWN_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_DRAWN_H_

#include <memory>

#include "compressors/drawn.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// `randomk` and `blocks`: compressors/drawn.h. Encoding reads what is drawn or, with a memory, x
// twice and the memory once. Each element finds its own place among the values, by arithmetic: no
// list is made. Decoding is one pass over y. No scratch.
std::unique_ptr<DeviceCodec> MakeDeviceRandomK(const RandomKOptions& options);
std::unique_ptr<DeviceCodec> MakeDeviceBlocks(const BlocksOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_DRAWN_H_
