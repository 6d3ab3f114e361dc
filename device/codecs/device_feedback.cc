#include "device/codecs/device_feedback.h"

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/feedback_steps.h"

namespace bdn {

using device_kernels::OweDecoded;
using device_kernels::UndoStep;

absl::Status UndoOnDevice(ComputeDevice& device, DeviceStream stream, const DeviceSource& step,
                          const float* decoded) {
  BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource(step));
  if (source.n == 0) return absl::OkStatus();
  return Launch<UndoStep>(device, stream, NumTiles(source.n), {source, decoded});
}

absl::Status OweOnDevice(ComputeDevice& device, DeviceStream stream, const float* decoded, size_t n,
                         float* residual) {
  // A source without arrays checks the number of elements as Encode does.
  BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource({.n = n}));
  if (source.n == 0) return absl::OkStatus();
  return Launch<OweDecoded>(device, stream, NumTiles(n), {decoded, residual, source.n});
}

}  // namespace bdn
