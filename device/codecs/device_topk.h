#ifndef BANDONEON_DEVICE_CODECS_DEVICE_TOPK_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_TOPK_H_

#include <memory>

#include "compressors/topk.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// Makes `topk` (compressors/topk.h). An exact encoding takes five passes over x: three for the
// digits of the threshold, one for counts and one that writes the payload. With a residual it takes
// two passes over x and four more over the residual; with a replica, six over x and five over the
// replica. With select=sampled it takes two passes over x and three over the sample; where the
// sample's threshold lets more than 2k through, it takes four more. Decoding takes one pass over y,
// and one over k elements. Scratch: a little over 8 KiB, 8 bytes for each 4096 elements, and with
// values=twobit 8 for each element that can be sent.
std::unique_ptr<DeviceCodec> MakeDeviceTopK(const TopKOptions& options);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_TOPK_H_
