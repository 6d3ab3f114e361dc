#include "device/codecs/device_dither.h"

#include <bit>

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/dither_levels.h"

namespace bdn {
namespace {

using device_kernels::DecodeDither;
using device_kernels::DitherFormat;
using device_kernels::DitherNorm;
using device_kernels::EncodeDither;
using device_kernels::kDitherGroup;
using device_kernels::LargestMagnitude;
using device_kernels::RoundUpDivide;
using device_kernels::RunLayout;
using device_kernels::Source;
using device_kernels::SumRuns;

class DeviceDither final : public DeviceCodec {
 public:
  explicit DeviceDither(const DitherOptions& options)
      : format_{.levels = static_cast<uint32_t>(options.levels),
                .bits = static_cast<uint32_t>(std::bit_width(options.levels)) + 1,
                .natural = options.natural},
        l2_(options.l2) {}

  // Scratch holds the bits of the maximum or, with norm=l2, three sums for each run: of p, and of p
  // scaled down and up, for squares that overflow or vanish.
  size_t ScratchBytes(size_t n) const override {
    if (!l2_) return sizeof(double);
    return SumRuns::kMostFactors * sizeof(double) * NumRuns(static_cast<uint32_t>(n));
  }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& draw, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const Source source, KernelSource(from));
    // The maximum starts from 0. Sums are stored, and need not start from anything.
    BDN_RETURN_IF_ERROR(
        BeginEncoding(device, stream, to, PayloadBytes(source.n), to.scratch, l2_ ? 0 : 1));
    if (source.n == 0) return absl::OkStatus();
    // The kernels leave the norm at its position in the payload, and read it there.
    auto* const norm = static_cast<float*>(to.payload);
    BDN_RETURN_IF_ERROR(FindNorm(device, stream, source, to, norm));
    return Launch<EncodeDither>(device, stream, NumTiles(source.n),
                                {.source = source,
                                 .format = format_,
                                 .draw = {draw.k0(), draw.k1()},
                                 .norm = norm,
                                 .codes = static_cast<uint32_t*>(to.payload) + 1,
                                 .result = to.result});
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    return Launch<DecodeDither>(device, stream, NumTiles(target.n),
                                {.format = format_,
                                 .norm = static_cast<const float*>(payload),
                                 .codes = static_cast<const uint32_t*>(payload) + 1,
                                 .target = target});
  }

 private:
  static uint32_t NumRuns(uint32_t n) { return RunLayout{n, n}.NumRuns(); }

  absl::Status FindNorm(ComputeDevice& device, DeviceStream stream, const Source& source,
                        const DeviceEncodeBuffers& to, float* norm) const {
    if (!l2_) {
      auto* const largest = static_cast<uint32_t*>(to.scratch);
      BDN_RETURN_IF_ERROR(Launch<LargestMagnitude>(device, stream, NumTiles(source.n),
                                                   {source, largest, to.result}));
      return Launch<DitherNorm>(device, stream, 1, {.largest = largest, .norm = norm});
    }
    const RunLayout layout{source.n, source.n};
    auto* const sums = static_cast<double*>(to.scratch);
    BDN_RETURN_IF_ERROR(Launch<SumRuns>(
        device, stream, RoundUpDivide(layout.NumRuns(), SumRuns::RunsTogether(layout)),
        {.source = source,
         .layout = layout,
         .squares = true,
         .num_factors = 3,
         .factor = {1.0f, DitherNorm::kSmallFactor, DitherNorm::kLargeFactor},
         .sums = sums,
         .result = to.result}));
    return Launch<DitherNorm>(device, stream, 1,
                              {.sums = sums, .num_runs = layout.NumRuns(), .norm = norm});
  }

  size_t PayloadBytes(size_t n) const {
    if (n == 0) return 0;
    const size_t groups = n / kDitherGroup;
    const size_t rest = n % kDitherGroup;
    return sizeof(float) + groups * format_.GroupWords() * 4 + (rest * format_.bits + 7) / 8;
  }

  const DitherFormat format_;
  const bool l2_;
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceDither(const DitherOptions& options) {
  return std::make_unique<DeviceDither>(options);
}

}  // namespace bdn
