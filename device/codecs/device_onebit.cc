#include "device/codecs/device_onebit.h"

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/sign_bits.h"

namespace bdn {
namespace {

using device_kernels::DecodeOneBit;
using device_kernels::EncodeOneBit;
using device_kernels::OneBitScales;
using device_kernels::RoundUpDivide;
using device_kernels::RunLayout;
using device_kernels::SumRuns;

constexpr size_t kScaleBytes = 4;
constexpr size_t kWordBytes = 4;

class DeviceOneBit final : public DeviceCodec {
 public:
  explicit DeviceOneBit(size_t block) : block_(block) {}

  size_t ScratchBytes(size_t n) const override {
    return 2 * sizeof(double) * LayoutOf(static_cast<uint32_t>(n)).NumRuns();
  }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& /*draw*/, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource(from));
    const RunLayout layout = LayoutOf(source.n);
    const size_t words_bytes = RoundUpDivide(source.n, device_kernels::kWordElements) * kWordBytes;
    BDN_RETURN_IF_ERROR(
        BeginEncoding(device, stream, to, layout.NumBlocks() * kScaleBytes + words_bytes));
    if (source.n == 0) return absl::OkStatus();
    auto* const sums = static_cast<double*>(to.scratch);
    auto* const scales = static_cast<float*>(to.payload);
    BDN_RETURN_IF_ERROR(Launch<SumRuns>(
        device, stream, RoundUpDivide(layout.NumRuns(), SumRuns::RunsTogether(layout)),
        {.source = source,
         .layout = layout,
         .squares = false,
         .num_factors = 2,
         .factor = {1.0f, OneBitScales::kLargeFactor},
         .sums = sums,
         .result = to.result}));
    BDN_RETURN_IF_ERROR(Launch<OneBitScales>(device, stream, NumTiles(layout.NumBlocks()),
                                             {.layout = layout, .sums = sums, .scales = scales}));
    return Launch<EncodeOneBit>(device, stream, NumTiles(source.n),
                                {.source = source,
                                 .scales = scales,
                                 .block = layout.block,
                                 .words = Words(to.payload, layout),
                                 .result = to.result});
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    const RunLayout layout = LayoutOf(target.n);
    return Launch<DecodeOneBit>(device, stream, NumTiles(target.n),
                                {.scales = static_cast<const float*>(payload),
                                 .block = layout.block,
                                 .words = Words(const_cast<void*>(payload), layout),
                                 .target = target});
  }

 private:
  RunLayout LayoutOf(uint32_t n) const {
    return {n, block_ == 0 ? n : static_cast<uint32_t>(block_)};
  }
  // After the scales.
  static uint32_t* Words(void* payload, const RunLayout& layout) {
    return static_cast<uint32_t*>(payload) + layout.NumBlocks();
  }

  const size_t block_;
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceOneBit(size_t block) {
  return std::make_unique<DeviceOneBit>(block);
}

}  // namespace bdn
