#include "device/codecs/device_sign.h"

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/sign_bits.h"

namespace bdn {
namespace {

using device_kernels::DecodeSign;
using device_kernels::EncodeSign;
using device_kernels::EndSign;

class DeviceSign final : public DeviceCodec {
 public:
  size_t ScratchBytes(size_t /*n*/) const override { return 0; }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& /*draw*/, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource(from));
    if (source.n == 0) return BeginEncoding(device, stream, to, 0);
    auto* const payload = static_cast<uint32_t*>(to.payload);
    // The first word becomes 1 if some tile has a zero, so it starts from 0. The size depends on
    // it: EndSign sets that.
    BDN_RETURN_IF_ERROR(BeginEncoding(device, stream, to, 0, payload, 1));
    if (HasMemory(source)) BDN_RETURN_IF_ERROR(CheckBeforeTaking(device, stream, source, to));
    BDN_RETURN_IF_ERROR(
        Launch<EncodeSign>(device, stream, NumTiles(source.n), {source, payload, to.result}));
    return Launch<EndSign>(device, stream, 1, {payload, source.n, to.result});
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    return Launch<DecodeSign>(device, stream, NumTiles(target.n),
                              {static_cast<const uint32_t*>(payload), target});
  }
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceSign() { return std::make_unique<DeviceSign>(); }

}  // namespace bdn
