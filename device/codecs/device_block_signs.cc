#include "device/codecs/device_block_signs.h"

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/sign_bits.h"
#include "device/kernels/twobit_levels.h"

namespace bdn {
namespace {

using device_kernels::BlockScales;
using device_kernels::RoundUpDivide;
using device_kernels::RunLayout;
using device_kernels::ScaleBlocks;
using device_kernels::SumRuns;

constexpr size_t kWordBytes = 4;

// OneBits and TwoBits hold all that the two codecs differ in.
struct OneBits {
  using Encode = device_kernels::EncodeOneBit;
  using Decode = device_kernels::DecodeOneBit;
  static constexpr size_t kBitmaps = 1;
  static constexpr float kFactor = 1.0f;
  static constexpr float kMost = 0x1.fffffep127f;
};
struct TwoBits {
  using Encode = device_kernels::EncodeTwoBit;
  using Decode = device_kernels::DecodeTwoBit;
  static constexpr size_t kBitmaps = 2;
  static constexpr float kFactor = 0.624f;
  static constexpr float kMost = 0x1.54p126f;
};

template <class Bits>
class DeviceBlockSigns final : public DeviceCodec {
 public:
  DeviceBlockSigns(size_t block, bool bfloat) : block_(block), bfloat_(bfloat) {}

  // Each run has two sums: one of |p|, and one of |p| * 2^-8 for blocks whose first sum overflows.
  size_t ScratchBytes(size_t n) const override {
    return 2 * sizeof(double) * LayoutOf(static_cast<uint32_t>(n)).NumRuns();
  }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& /*draw*/, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource(from));
    const RunLayout layout = LayoutOf(source.n);
    const size_t words = Bits::kBitmaps * RoundUpDivide(source.n, device_kernels::kWordElements);
    // The payload has one size, whatever the input is.
    BDN_RETURN_IF_ERROR(
        BeginEncoding(device, stream, to, (WordsOfScales(layout) + words) * kWordBytes));
    if (source.n == 0) return absl::OkStatus();
    // The kernels of a stream run one after the other: all sums are there before the first scale,
    // and all scales before the first sign.
    auto* const sums = static_cast<double*>(to.scratch);
    const BlockScales scales = ScalesOf(to.payload, layout);
    BDN_RETURN_IF_ERROR(Launch<SumRuns>(
        device, stream, RoundUpDivide(layout.NumRuns(), SumRuns::RunsTogether(layout)),
        {.source = source,
         .layout = layout,
         .squares = false,
         .num_factors = 2,
         .factor = {1.0f, ScaleBlocks::kLargeFactor},
         .sums = sums,
         .result = to.result}));
    BDN_RETURN_IF_ERROR(Launch<ScaleBlocks>(device, stream, NumTiles(layout.NumBlocks()),
                                            {.layout = layout,
                                             .sums = sums,
                                             .scales = scales,
                                             .factor = Bits::kFactor,
                                             .most = Bits::kMost}));
    return Launch<typename Bits::Encode>(device, stream, NumTiles(source.n),
                                         {.source = source,
                                          .scales = scales,
                                          .words = Words(to.payload, layout),
                                          .result = to.result});
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    const RunLayout layout = LayoutOf(target.n);
    // Decoding only reads; the types are also those of encoding.
    void* const read = const_cast<void*>(payload);
    return Launch<typename Bits::Decode>(
        device, stream, NumTiles(target.n),
        {.scales = ScalesOf(read, layout), .words = Words(read, layout), .target = target});
  }

 private:
  RunLayout LayoutOf(uint32_t n) const {
    return {n, block_ == 0 ? n : static_cast<uint32_t>(block_)};
  }
  BlockScales ScalesOf(void* payload, const RunLayout& layout) const {
    return {payload, bfloat_, layout.block};
  }
  // bfloat16 scales are padded to whole words.
  size_t WordsOfScales(const RunLayout& layout) const {
    return bfloat_ ? RoundUpDivide(layout.NumBlocks(), 2) : layout.NumBlocks();
  }
  uint32_t* Words(void* payload, const RunLayout& layout) const {
    return static_cast<uint32_t*>(payload) + WordsOfScales(layout);
  }

  const size_t block_;
  const bool bfloat_;
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceOneBit(size_t block, bool bfloat_scales) {
  return std::make_unique<DeviceBlockSigns<OneBits>>(block, bfloat_scales);
}

std::unique_ptr<DeviceCodec> MakeDeviceTwoBit(size_t block) {
  return std::make_unique<DeviceBlockSigns<TwoBits>>(block, true);
}

}  // namespace bdn
