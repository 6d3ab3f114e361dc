#include "device/codecs/device_floats.h"

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/float_codes.h"

namespace bdn {
namespace {

using device_kernels::DecodeFloats;
using device_kernels::EncodeFloats;

class DeviceFloats final : public DeviceCodec {
 public:
  explicit DeviceFloats(DType wire) : wire_(wire) {}

  size_t ScratchBytes(size_t /*n*/) const override { return 0; }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& /*draw*/, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource(from));
    BDN_RETURN_IF_ERROR(BeginEncoding(device, stream, to, source.n * DTypeSize(wire_)));
    if (source.n == 0) return absl::OkStatus();
    // Without a residual or replica the encoding itself notes bad elements.
    if (HasMemory(source)) BDN_RETURN_IF_ERROR(CheckBeforeTaking(device, stream, source, to));
    return Launch<EncodeFloats>(device, stream, NumTiles(source.n),
                                {source, to.payload, Wire(), to.result});
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    return Launch<DecodeFloats>(device, stream, NumTiles(target.n), {payload, Wire(), target});
  }

 private:
  device_kernels::ElementType Wire() const {
    return static_cast<device_kernels::ElementType>(wire_);
  }

  const DType wire_;
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceFloats(DType wire) {
  return std::make_unique<DeviceFloats>(wire);
}

}  // namespace bdn
