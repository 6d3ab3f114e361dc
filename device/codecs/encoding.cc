#include "device/codecs/encoding.h"

#include <algorithm>

#include "common/base/status.h"

namespace bdn {
namespace {

using device_kernels::BeginEncode;
using device_kernels::CheckInput;
using device_kernels::ElementType;
using device_kernels::SourceKind;

absl::StatusOr<ElementType> TypeOf(DType dtype) {
  // The cast below needs equal numbers.
  static_assert(static_cast<int>(ElementType::kFloat32) == static_cast<int>(DType::kFloat32));
  static_assert(static_cast<int>(ElementType::kFloat16) == static_cast<int>(DType::kFloat16));
  static_assert(static_cast<int>(ElementType::kBFloat16) == static_cast<int>(DType::kBFloat16));
  if (dtype > DType::kBFloat16) {
    return InvalidArgument("codecs on a device take no %s", DTypeName(dtype));
  }
  return static_cast<ElementType>(dtype);
}

absl::StatusOr<uint32_t> CountOf(size_t n) {
  if (n < DeviceCodec::kMostElements) return static_cast<uint32_t>(n);
  return InvalidArgument("codecs on a device take fewer than 2^31 elements, not %d", n);
}

}  // namespace

absl::StatusOr<device_kernels::Source> KernelSource(const DeviceSource& source) {
  BDN_ASSIGN_OR_RETURN(const ElementType type, TypeOf(source.dtype));
  BDN_ASSIGN_OR_RETURN(const uint32_t n, CountOf(source.n));
  device_kernels::Source kernel{.x = source.x,
                                .type = type,
                                .kind = SourceKind::kScaled,
                                .scale = source.options.scale,
                                .decay = source.options.decay,
                                .momentum_factor = source.options.momentum,
                                .n = n};
  // With a replica the options are not read.
  if (source.replica != nullptr) {
    kernel.kind = SourceKind::kDifference;
    kernel.memory = source.replica;
    kernel.scale = 1.0f;
  } else if (source.residual != nullptr) {
    kernel.kind = SourceKind::kFeedback;
    kernel.memory = source.residual;
    kernel.momentum = source.options.momentum == 0.0f ? nullptr : source.momentum;
  }
  return kernel;
}

absl::StatusOr<device_kernels::Target> KernelTarget(const DeviceTarget& target) {
  BDN_ASSIGN_OR_RETURN(const ElementType type, TypeOf(target.dtype));
  BDN_ASSIGN_OR_RETURN(const uint32_t n, CountOf(target.n));
  if (target.adds && type != ElementType::kFloat32) {
    return InvalidArgument("decoding adds to float32 alone, not to %s", DTypeName(target.dtype));
  }
  return device_kernels::Target{
      .y = target.y, .type = type, .scale = target.scale, .adds = target.adds, .n = n};
}

absl::Status BeginEncoding(ComputeDevice& device, DeviceStream stream,
                           const DeviceEncodeBuffers& to, size_t used_bytes, void* words,
                           size_t zeros) {
  // There is at least one block, which sets up the result.
  return Launch<BeginEncode>(device, stream, std::max(1u, NumTiles(zeros)),
                             {.result = to.result,
                              .used_bytes = used_bytes,
                              .words = static_cast<uint32_t*>(words),
                              .zeros = static_cast<uint32_t>(zeros)});
}

absl::Status CheckBeforeTaking(ComputeDevice& device, DeviceStream stream,
                               const device_kernels::Source& source,
                               const DeviceEncodeBuffers& to) {
  return Launch<CheckInput>(device, stream, NumTiles(source.n),
                            {.source = source, .result = to.result});
}

}  // namespace bdn
