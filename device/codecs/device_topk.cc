#include "device/codecs/device_topk.h"

#include <algorithm>

#include "common/base/status.h"
#include "device/codecs/encoding.h"
#include "device/kernels/topk_selection.h"

namespace bdn {
namespace {

using device_kernels::CountChosen;
using device_kernels::CountDigits;
using device_kernels::DecideDigit;
using device_kernels::DecodeTopK;
using device_kernels::FillZeros;
using device_kernels::JudgeSample;
using device_kernels::kMostDigits;
using device_kernels::kNumLevels;
using device_kernels::kTopKBlock;
using device_kernels::PlaceChosen;
using device_kernels::RoundUpDivide;
using device_kernels::Source;
using device_kernels::TopKLayout;
using device_kernels::TopKSample;
using device_kernels::TopKScratch;
using device_kernels::TopKSource;
using device_kernels::TopKState;
using device_kernels::TopKValueFormat;
using device_kernels::WriteChosen;
using device_kernels::WriteSharedValues;

constexpr size_t kStateWords = sizeof(TopKState) / sizeof(uint32_t);

TopKValueFormat FormatOf(TopKValues values) {
  switch (values) {
    case TopKValues::kFloat:
      return TopKValueFormat::kFloat;
    case TopKValues::kHalf:
      return TopKValueFormat::kHalf;
    case TopKValues::kTwoBit:
      break;
  }
  return TopKValueFormat::kTwoBit;
}

constexpr TopKSample All(uint32_t n) { return {.period = 1, .count = n}; }

// One encoding on its way, with the arguments that all of its launches need.
struct Selecting {
  ComputeDevice& device;
  DeviceStream stream;
  Source source;
  TopKScratch scratch;
  EncodeResult* result;
  bool taken = false;

  // Returns whether a reading takes p, as the first full reading does.
  bool Takes(const TopKSample& sample) {
    if (taken || sample.count < source.n) return false;
    taken = true;
    return true;
  }

  // Finds the threshold that `wanted` elements of the sample reach, and counts the elements of all
  // of p that reach it.
  absl::Status FindThreshold(const TopKSample& sample, uint32_t wanted, bool all_ties) {
    for (uint32_t level = 0; level < kNumLevels; ++level) {
      const TopKSource from{source, taken};
      // A sample is only looked at, even where it is all of p.
      const bool takes = !all_ties && Takes(sample);
      BDN_RETURN_IF_ERROR(Launch<CountDigits>(device, stream, NumTiles(sample.count),
                                              {from, sample, {level}, scratch, takes, result}));
      BDN_RETURN_IF_ERROR(
          Launch<DecideDigit>(device, stream, 1, {{level}, scratch, wanted, all_ties}));
    }
    return Count();
  }

  // Counts, for each tile, the elements that reach the threshold.
  absl::Status Count() {
    const TopKSource from{source, taken};
    const bool takes = Takes(All(source.n));
    return Launch<CountChosen>(device, stream, NumTiles(source.n), {from, scratch, takes, result});
  }
};

class DeviceTopK final : public DeviceCodec {
 public:
  explicit DeviceTopK(const TopKOptions& options)
      : options_(options), format_(FormatOf(options.values)) {}

  size_t ScratchBytes(size_t n) const override {
    return sizeof(uint32_t) * (kStateWords + kMostDigits + 2 * NumTiles(n) + 2 * NumKept(n));
  }

  absl::Status Encode(ComputeDevice& device, DeviceStream stream, const DeviceSource& from,
                      const Draw& /*draw*/, const DeviceEncodeBuffers& to) const override {
    BDN_ASSIGN_OR_RETURN(const Source source, KernelSource(from));
    if (source.n == 0) {
      // The payload of no elements is a count of 0.
      return BeginEncoding(device, stream, to, sizeof(uint32_t), to.payload, 1);
    }
    // The state and the counts of digits start from 0; the rest of scratch is written before it is
    // read.
    BDN_RETURN_IF_ERROR(
        BeginEncoding(device, stream, to, 0, to.scratch, kStateWords + kMostDigits));
    if (HasMemory(source)) BDN_RETURN_IF_ERROR(CheckBeforeTaking(device, stream, source, to));
    Selecting selecting{.device = device,
                        .stream = stream,
                        .source = source,
                        .scratch = ScratchOf(to.scratch, source.n),
                        .result = to.result};
    const uint32_t k = NumSent(source.n);
    if (options_.sampled) BDN_RETURN_IF_ERROR(TrySample(selecting, k));
    // The host does not wait to learn whether the sample's threshold is kept: if it is, these
    // kernels return at once (TopKState::skips).
    BDN_RETURN_IF_ERROR(selecting.FindThreshold(All(source.n), k, false));
    auto* const payload = static_cast<uint8_t*>(to.payload);
    // Each tile can write without waiting for the others, once it is known how many elements the
    // tiles before it send.
    BDN_RETURN_IF_ERROR(Launch<PlaceChosen>(
        device, stream, 1, {source.n, format_, selecting.scratch, payload, to.result}));
    BDN_RETURN_IF_ERROR(
        Launch<WriteChosen>(device, stream, NumTiles(source.n),
                            {{source, true}, format_, selecting.scratch, payload, to.result}));
    if (format_ != TopKValueFormat::kTwoBit) return absl::OkStatus();
    // The host does not know how many values a sample's threshold lets through, so there are
    // threads for the most.
    const uint32_t of_block = TopKLayout::kShared * device.threads();
    return Launch<WriteSharedValues>(device, stream, RoundUpDivide(MostSent(source.n), of_block),
                                     {source, selecting.scratch, payload, to.result});
  }

  absl::Status Decode(ComputeDevice& device, DeviceStream stream, const void* payload,
                      const DeviceTarget& to) const override {
    BDN_ASSIGN_OR_RETURN(const device_kernels::Target target, KernelTarget(to));
    if (target.n == 0) return absl::OkStatus();
    // Elements that were not sent decode to 0. Adding leaves them alone.
    if (!target.adds) {
      BDN_RETURN_IF_ERROR(Launch<FillZeros>(device, stream, NumTiles(target.n), {target}));
    }
    return Launch<DecodeTopK>(device, stream, RoundUpDivide(target.n, kTopKBlock),
                              {static_cast<const uint8_t*>(payload), format_, target});
  }

 private:
  // Finds a threshold from the sample. The exact one replaces it where it lets too many elements
  // through.
  static absl::Status TrySample(Selecting& selecting, uint32_t k) {
    const uint32_t n = selecting.source.n;
    const TopKSample sample = SampleOf(n);
    // compressors/topk.h pins this rank, and the sample.
    const uint64_t wanted = uint64_t{k} * sample.count / n;
    BDN_RETURN_IF_ERROR(selecting.FindThreshold(
        sample, static_cast<uint32_t>(std::max<uint64_t>(1, wanted)), true));
    return Launch<JudgeSample>(selecting.device, selecting.stream, 1,
                               {selecting.scratch.state, 2 * k});
  }

  static TopKSample SampleOf(uint32_t n) {
    constexpr uint32_t kRun = TopKSample::kRun;
    const uint32_t period = n >= 1u << 19 ? 4096 : n >= 1u << 15 ? 512 : kRun;
    return {.period = period, .count = n / period * kRun + std::min(n % period, kRun)};
  }

  TopKScratch ScratchOf(void* scratch, uint32_t n) const {
    auto* const digits = static_cast<uint32_t*>(scratch) + kStateWords;
    uint32_t* const kept = digits + kMostDigits + 2 * NumTiles(n);
    return {.state = static_cast<TopKState*>(scratch),
            .digits = digits,
            .above = digits + kMostDigits,
            .equal = digits + kMostDigits + NumTiles(n),
            .chosen = kept,
            .p = reinterpret_cast<float*>(kept + NumKept(n))};
  }

  uint32_t NumSent(uint32_t n) const { return static_cast<uint32_t>(TopKCount(options_.ratio, n)); }

  uint32_t MostSent(uint32_t n) const {
    return options_.sampled ? std::min(n, 2 * NumSent(n)) : NumSent(n);
  }
  // Returns how many values wait in scratch until all values that they share magnitudes with are
  // there.
  size_t NumKept(size_t n) const {
    return format_ == TopKValueFormat::kTwoBit ? MostSent(static_cast<uint32_t>(n)) : 0;
  }

  const TopKOptions options_;
  const TopKValueFormat format_;
};

}  // namespace

std::unique_ptr<DeviceCodec> MakeDeviceTopK(const TopKOptions& options) {
  return std::make_unique<DeviceTopK>(options);
}

}  // namespace bdn
