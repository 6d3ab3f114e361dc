#ifndef BANDONEON_DEVICE_CODECS_DEVICE_BLOCK_SIGNS_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_BLOCK_SIGNS_H_

#include <memory>

#include "device/codecs/device_codec.h"

namespace bdn {

// `onebit` and `twobit`: compressors/onebit.h and compressors/twobit.h. Two passes over x and its
// memory, sums and signs; one to decode. Scratch: 16 bytes for each run of 1024 elements or, where
// blocks are shorter, each block. The sums of a block's runs are added by one thread, as their order
// is pinned: 1024 of them a partition.
std::unique_ptr<DeviceCodec> MakeDeviceOneBit(size_t block, bool bfloat_scales);
std::unique_ptr<DeviceCodec> MakeDeviceTwoBit(size_t block);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_BLOCK_SIGNS_H_
