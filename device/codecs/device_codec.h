#ifndef BANDONEON_DEVICE_CODECS_DEVICE_CODEC_H_
#define BANDONEON_DEVICE_CODECS_DEVICE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/draw.h"
#include "common/base/dtype.h"
#include "compressors/codec.h"
#include "device/compute_device.h"
#include "device/kernels/source_elements.h"
#include "kernels/accumulate_kernels.h"

namespace bdn {

using device_kernels::EncodeResult;

// The input of an encoding: float32[n], float16[n] or bfloat16[n] and its residual, momentum or
// replica (float32[n]), all in the device's memory, aligned to their elements.
struct DeviceSource {
  const void* x = nullptr;
  DType dtype = DType::kFloat32;
  size_t n = 0;
  // p = scale * x; with a residual, decay and momentum count too, as in Codec::EncodeFeedback.
  FeedbackOptions options;
  float* residual = nullptr;
  float* momentum = nullptr;  // null where options.momentum is 0
  // Not null for delta: p = x - replica, and the replica becomes what its receivers will hold, as
  // EncodeDelta of compressors/memory/delta.h does. Then there is no residual, and the options are
  // not read.
  float* replica = nullptr;
};

// The array in the device's memory that decoded elements go to.
struct DeviceTarget {
  void* y = nullptr;
  DType dtype = DType::kFloat32;
  size_t n = 0;
  float scale = 1.0f;
  // y[i] += scale * decoded[i], and not y[i] = scale * decoded[i]. Then y is float32.
  bool adds = false;
};

// The arrays in the device's memory that an encoding writes.
struct DeviceEncodeBuffers {
  void* payload = nullptr;         // MaxEncodedBytes of the codec, aligned to 4
  void* scratch = nullptr;         // DeviceCodec::ScratchBytes, aligned to 8
  EncodeResult* result = nullptr;  // aligned to 8
};

// A codec whose loops are kernels. It gives the same bytes as the host's codec that it is made
// from, for the same input and draw. Stateless and thread-safe. It puts its work into a stream and
// does not wait for it.
class DeviceCodec {
 public:
  // Kernels count elements in 32 bits, and take fewer than these. Keys are cut far below this.
  static constexpr size_t kMostElements = size_t{1} << 31;

  virtual ~DeviceCodec() = default;

  // Returns the bytes of working memory for an encoding of n elements.
  virtual size_t ScratchBytes(size_t n) const = 0;

  // Encodes p into the payload. Once the stream is done, `result` says how it went: Outcome reads
  // it. Where some input is not finite, payload and scratch are unspecified, and the source's
  // residual, momentum and replica are unchanged. Returns InvalidArgument for a type that is none
  // of the three, or for too many elements.
  virtual absl::Status Encode(ComputeDevice& device, DeviceStream stream,
                              const DeviceSource& source, const Draw& draw,
                              const DeviceEncodeBuffers& to) const = 0;

  // Decodes the payload. REQUIRES: `payload`, in the device's memory and aligned to 4, is valid for
  // target.n elements: the host's codec has validated it. Errors are as those of Encode.
  virtual absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                              const DeviceTarget& target) const = 0;
};

// Makes the device's codec for `codec`. Returns InvalidArgument, with the spec, where that has no
// kernels.
absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeDeviceCodec(const Codec& codec);

// Returns the bytes used, or the error of the host's codec: InvalidArgument "element 17 is nan".
absl::StatusOr<size_t> Outcome(const EncodeResult& result);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_CODEC_H_
