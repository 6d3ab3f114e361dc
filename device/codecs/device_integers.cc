#include "device/codecs/device_integers.h"

#include <algorithm>

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/integer_codes.h"

namespace bdn {
namespace {

using device_kernels::DecodeIntegers;
using device_kernels::EncodeIntegers;
using device_kernels::IntegerFormat;
using device_kernels::IntegerMagnitudes;
using device_kernels::kIntegerRun;

class DeviceIntegers final : public DeviceCodec {
 public:
  explicit DeviceIntegers(const IntegerOptions& options)
      : format_{.bits = static_cast<uint32_t>(options.bits),
                .group = static_cast<uint32_t>(options.group),
                .hadamard = options.hadamard,
                .nearest = options.nearest,
                .largest_scale = LargestIntegerScale(options)} {}

  size_t ScratchBytes(size_t n) const override {
    return HasLargeGroups() ? sizeof(uint32_t) * NumGroups(n) : 0;
  }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& draw, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Source source, KernelSource(from));
    // Groups longer than a tile need their magnitudes before the first code, so these have a pass
    // and scratch of their own. That pass also checks all of the input.
    auto* const magnitudes = HasLargeGroups() ? static_cast<uint32_t*>(to.scratch) : nullptr;
    BDN_RETURN_IF_ERROR(BeginEncoding(device, stream, to, PayloadBytes(source.n), magnitudes,
                                      HasLargeGroups() ? NumGroups(source.n) : 0));
    if (source.n == 0) return absl::OkStatus();
    if (HasLargeGroups()) {
      BDN_RETURN_IF_ERROR(Launch<IntegerMagnitudes>(device, stream, format_.NumTiles(source.n),
                                                    {source, format_, magnitudes, to.result}));
    } else if (HasMemory(source)) {
      BDN_RETURN_IF_ERROR(CheckBeforeTaking(device, stream, source, to));
    }
    return Launch<EncodeIntegers>(device, stream, format_.NumTiles(source.n),
                                  {.source = source,
                                   .format = format_,
                                   .draw = {draw.k0(), draw.k1()},
                                   .magnitudes = magnitudes,
                                   .scales = static_cast<float*>(to.payload),
                                   .codes = Codes(to.payload, source.n),
                                   .result = to.result});
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    return Launch<DecodeIntegers>(device, stream, format_.NumTiles(target.n),
                                  {.format = format_,
                                   .scales = static_cast<const float*>(payload),
                                   .codes = Codes(const_cast<void*>(payload), target.n),
                                   .target = target});
  }

 private:
  bool HasLargeGroups() const { return format_.group > device_kernels::kTile; }
  size_t NumGroups(size_t n) const { return (n + format_.group - 1) / format_.group; }
  // Returns the codes, which come after the scales.
  uint8_t* Codes(void* payload, size_t n) const {
    return static_cast<uint8_t*>(payload) + sizeof(float) * NumGroups(n);
  }
  size_t PayloadBytes(size_t n) const {
    const size_t run = format_.RunBytes();
    return sizeof(float) * NumGroups(n) + n / kIntegerRun * run +
           std::min<size_t>(n % kIntegerRun, run);
  }

  const IntegerFormat format_;
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceIntegers(const IntegerOptions& options) {
  return std::make_unique<DeviceIntegers>(options);
}

}  // namespace bdn
