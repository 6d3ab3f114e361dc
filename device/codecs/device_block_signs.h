#ifndef BANDONEON_DEVICE_CODECS_DEVICE_BLOCK_SIGNS_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_BLOCK_SIGNS_H_

#include <memory>

#include "device/codecs/device_codec.h"

namespace bdn {

// Make `onebit` and `twobit` (compressors/onebit.h, compressors/twobit.h). Encoding takes two
// passes over x and its residual or replica, one for sums and one for signs; decoding takes one.
// Scratch: 16 bytes for each run of 1024 elements or, where blocks are shorter, for each block. One
// thread adds the sums of a block's runs, as their order is pinned: a partition of 2^20 elements
// has 1024 of them.
std::unique_ptr<DeviceCodec> MakeDeviceOneBit(size_t block, bool bfloat_scales);
std::unique_ptr<DeviceCodec> MakeDeviceTwoBit(size_t block);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_BLOCK_SIGNS_H_
