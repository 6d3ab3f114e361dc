#ifndef BANDONEON_DEVICE_CODECS_DEVICE_FEEDBACK_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_FEEDBACK_H_

#include "absl/status/status.h"
#include "device/codecs/device_codec.h"

namespace bdn {

// Do Undo and Owe of compressors/memory/error_feedback.h, with the same bits, for a residual in the
// device's memory. `decoded`, float32[n], is there, too. They put one kernel into the stream and do
// not wait. Errors are as those of DeviceCodec::Encode. REQUIRES: `step` is as it was for Encode,
// with a residual; its decay is not 0.
absl::Status UndoOnDevice(ComputeDevice& device, DeviceStream stream, const DeviceSource& step,
                          const float* decoded);
absl::Status OweOnDevice(ComputeDevice& device, DeviceStream stream, const float* decoded, size_t n,
                         float* residual);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_FEEDBACK_H_
