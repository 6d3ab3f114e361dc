#ifndef BANDONEON_DEVICE_CODECS_ENCODING_H_
#define BANDONEON_DEVICE_CODECS_ENCODING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/codecs/device_codec.h"
#include "device/kernels/begin_encode.h"
#include "device/kernels/source_elements.h"

// What the codecs of a device share. Internal to device/codecs/.

namespace bdn {

// As kernels take them. InvalidArgument for what the header of DeviceCodec refuses.
absl::StatusOr<device_kernels::Source> KernelSource(const DeviceSource& source);
absl::StatusOr<device_kernels::Target> KernelTarget(const DeviceTarget& target);

inline uint32_t NumTiles(size_t n) {
  return static_cast<uint32_t>((n + device_kernels::kTile - 1) / device_kernels::kTile);
}

// Puts into the stream what every encoding begins with: the result, and `zeros` words set to 0.
// `used_bytes` is what the result says unless a kernel says otherwise.
absl::Status BeginEncoding(ComputeDevice& device, DeviceStream stream,
                           const DeviceEncodeBuffers& to, size_t used_bytes, void* words = nullptr,
                           size_t zeros = 0);
// And, for what must not change a memory before all of the input was seen, the check of it.
absl::Status CheckBeforeTaking(ComputeDevice& device, DeviceStream stream,
                               const device_kernels::Source& source, const DeviceEncodeBuffers& to);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_ENCODING_H_
