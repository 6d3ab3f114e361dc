#include "device/codecs/device_drawn.h"

#include <algorithm>

#include "common/base/status.h"
#include "compressors/drawn_blocks.h"
#include "device/codecs/encoding.h"
#include "device/kernels/drawn_values.h"
#include "kernels/clamp_to_finite.h"

namespace bdn {
namespace {

using device_kernels::DecodeDrawn;
using device_kernels::DrawnFormat;
using device_kernels::GatherDrawn;
using device_kernels::TakeDrawn;

class DeviceDrawn final : public DeviceCodec {
 public:
  DeviceDrawn(double ratio, size_t size, float factor)
      : format_{.ratio = ratio, .size = static_cast<uint32_t>(size), .factor = factor} {}

  size_t ScratchBytes(size_t /*n*/) const override { return 0; }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& draw, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource(from));
    BDN_RETURN_IF_ERROR(BeginEncoding(device, stream, to, 0));
    if (source.n == 0) return absl::OkStatus();
    const GatherDrawn::Arguments arguments{.source = source,
                                           .format = format_,
                                           .draw = {draw.k0(), draw.k1()},
                                           .payload = static_cast<uint32_t*>(to.payload),
                                           .result = to.result};
    // Without a residual or replica only the drawn elements are read, and they are checked as they
    // are read. There are threads for the most values that a draw can have; the kernel finds how
    // many there are.
    if (!HasMemory(source)) {
      const uint32_t tiles = std::max(1u, NumTiles(MostValues(source.n)));
      return Launch<GatherDrawn>(device, stream, tiles, arguments);
    }
    // With a residual or replica every element is taken, so all of the input is checked first.
    BDN_RETURN_IF_ERROR(CheckBeforeTaking(device, stream, source, to));
    return Launch<TakeDrawn>(device, stream, NumTiles(source.n), arguments);
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    return Launch<DecodeDrawn>(device, stream, NumTiles(target.n),
                               {format_, static_cast<const uint32_t*>(payload), target});
  }

 private:
  size_t MostValues(size_t n) const {
    const size_t num_blocks = (n + format_.size - 1) / format_.size;
    const size_t most = DrawnBlocks::Count(format_.ratio, num_blocks, 1 - 0x1p-32);
    return std::min(n, most * format_.size);
  }

  const DrawnFormat format_;
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceRandomK(const RandomKOptions& options) {
  const auto inverse = ClampToFinite(static_cast<float>(1.0 / options.ratio));
  return std::make_unique<DeviceDrawn>(options.ratio, 1, options.unbiased ? inverse : 1.0f);
}

std::unique_ptr<DeviceCodec> MakeDeviceBlocks(const BlocksOptions& options) {
  return std::make_unique<DeviceDrawn>(options.ratio, options.size, 1.0f);
}

}  // namespace bdn
