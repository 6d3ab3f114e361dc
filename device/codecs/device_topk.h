#ifndef BANDONEON_DEVICE_CODECS_DEVICE_TOPK_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_TOPK_H_

#include <memory>

#include "compressors/topk.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// `topk`: compressors/topk.h. Exact: five passes over x (three digits of the threshold, counts,
// what is sent); with a residual two over x, and four more over the residual. With select=sampled
// two passes and three over the sample, unless that lets more than 2k through: then five more.
// Decoding: one pass over y, and k elements. Scratch: 8 KiB, 8 bytes for each 4096 elements,
// and with values=twobit 8 for each that can be sent.
std::unique_ptr<DeviceCodec> MakeDeviceTopK(const TopKOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_TOPK_H_
