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

// What is encoded: float32[n], float16[n] or bfloat16[n] and its memory (float32[n]), all in the
// device's memory, aligned to their elements.
struct DeviceSource {
  const void* x = nullptr;
  DType dtype = DType::kFloat32;
  size_t n = 0;
  // p = scale * x; with a residual that and decay and momentum, as Codec::EncodeFeedback has it.
  FeedbackOptions options;
  float* residual = nullptr;
  float* momentum = nullptr;  // null where options.momentum is 0
  // p = x - replica, and the replica becomes what its receivers will hold: EncodeDelta of
  // compressors/memory/delta.h. Then there is no residual, and the options are not read.
  float* replica = nullptr;
};

// Where decoded elements go, in the device's memory.
struct DeviceTarget {
  void* y = nullptr;
  DType dtype = DType::kFloat32;
  size_t n = 0;
  float scale = 1.0f;
  // y[i] += scale * decoded[i] rather than y[i] = that. y is float32 then.
  bool adds = false;
};

// What an encoding writes, in the device's memory.
struct DeviceEncodeBuffers {
  void* payload = nullptr;         // MaxEncodedBytes of the codec, aligned to 4
  void* scratch = nullptr;         // DeviceCodec::ScratchBytes, aligned to 8
  EncodeResult* result = nullptr;  // aligned to 8
};

// A codec whose loops are kernels: the same bytes as the codec that it is made of, for the same
// input and draw. Stateless and thread-safe. It puts its work into a stream and does not wait for
// it.
class DeviceCodec {
 public:
  // Keys are cut far below this.
  static constexpr size_t kMostElements = size_t{1} << 31;

  virtual ~DeviceCodec() = default;

  // The working memory of an encoding of n elements.
  virtual size_t ScratchBytes(size_t n) const = 0;

  // Encodes p into the payload; once the stream is done, `result` says how it went: Outcome. Where
  // some input is not finite, payload and scratch are unspecified and the source's memory is as it
  // was. InvalidArgument for a type that is none of the three, or for too many elements.
  virtual absl::Status Encode(ComputeDevice& device, DeviceStream stream,
                              const DeviceSource& source, const Draw& draw,
                              const DeviceEncodeBuffers& to) const = 0;

  // REQUIRES: `payload`, in the device's memory and aligned to 4, is valid for target.n elements:
  // the host's codec has validated it. Errors as of Encode.
  virtual absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                              const DeviceTarget& target) const = 0;
};

// InvalidArgument, with the spec, where the codec has no kernels.
absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeDeviceCodec(const Codec& codec);

// The bytes used, or the error of the codec on the host: InvalidArgument "element 17 is nan".
absl::StatusOr<size_t> Outcome(const EncodeResult& result);

}  // namespace bdn

#endif  // BANDONEON_DEVICE_CODECS_DEVICE_CODEC_H_
