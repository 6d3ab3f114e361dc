#ifndef BANDONEON_DEVICE_CODECS_ENCODING_H_
#define BANDONEON_DEVICE_CODECS_ENCODING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/codecs/device_codec.h"
#include "device/kernels/begin_encode.h"
#include "device/kernels/source_elements.h"

// Helpers that the codecs of a device share. Internal to device/codecs/.

namespace bdn {

// KernelSource and KernelTarget return the arguments in the form that kernels take, or
// InvalidArgument for those that DeviceCodec's header refuses.
absl::StatusOr<device_kernels::Source> KernelSource(const DeviceSource& source);
absl::StatusOr<device_kernels::Target> KernelTarget(const DeviceTarget& target);

inline uint32_t NumTiles(size_t n) {
  return static_cast<uint32_t>((n + device_kernels::kTile - 1) / device_kernels::kTile);
}

// Puts into the stream the beginning of every encoding: it sets up the result, and sets `zeros`
// words to 0. `used_bytes` is the size in the result unless a kernel changes it.
absl::Status BeginEncoding(ComputeDevice& device, DeviceStream stream,
                           const DeviceEncodeBuffers& to, size_t used_bytes, void* words = nullptr,
                           size_t zeros = 0);
// Puts a check of all of the input into the stream. It follows BeginEncoding where an encoding must
// not change a residual or replica before all of the input was seen to be finite.
absl::Status CheckBeforeTaking(ComputeDevice& device, DeviceStream stream,
                               const device_kernels::Source& source, const DeviceEncodeBuffers& to);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_ENCODING_H_
