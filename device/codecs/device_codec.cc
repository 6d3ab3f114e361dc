#include "device/codecs/device_codec.h"

#include <array>
#include <span>
#include <string>

#include "common/base/spec_text.h"
#include "common/base/status.h"
#include "compressors/codec_table.h"
#include "device/codecs/device_block_signs.h"
#include "device/codecs/device_dither.h"
#include "device/codecs/device_drawn.h"
#include "device/codecs/device_floats.h"
#include "device/codecs/device_integers.h"
#include "device/codecs/device_sign.h"
#include "device/codecs/device_topk.h"

namespace bdn {
namespace {

// Returns the options of a codec, as the table of codecs reads them from its canonical spec.
absl::StatusOr<OptionValues> OptionsOf(std::string_view spec) {
  SpecReader reader("codec spec", spec);
  const std::string_view name = reader.Name();
  for (const CodecRow& row : CodecRows()) {
    if (name == row.name) return reader.Options(name, row.options);
  }
  return Internal("%s is not in the table of codecs", std::string(spec));
}

// Values were checked when the codec was made, so that any is taken here.
constexpr size_t kAny = ~size_t{0};

std::unique_ptr<DeviceCodec> MakeIntegersOf(int bits, OptionValues& values) {
  constexpr std::array kTransforms = {"0", "32"};
  constexpr std::array kRounds = {"stochastic", "nearest"};
  return MakeDeviceIntegers({.bits = bits,
                             .group = values.Whole(0, 0, kAny),
                             .hadamard = values.OneOf(1, kTransforms) == 1,
                             .nearest = values.OneOf(2, kRounds) == 1});
}

double RealOf(int i, OptionValues& values) {
  return values.Real(i, [](double) { return true; });
}

std::unique_ptr<DeviceCodec> MakeDitherOf(OptionValues& values) {
  constexpr std::array kKinds = {"linear", "natural"};
  constexpr std::array kNorms = {"max", "l2"};
  return MakeDeviceDither({.levels = values.Whole(0, 0, kAny),
                           .natural = values.OneOf(1, kKinds) == 1,
                           .l2 = values.OneOf(2, kNorms) == 1});
}

std::unique_ptr<DeviceCodec> MakeTopKOf(OptionValues& values) {
  constexpr std::array kSelects = {"exact", "sampled"};
  constexpr std::array kValues = {"fp32", "fp16", "twobit"};
  return MakeDeviceTopK({.ratio = RealOf(0, values),
                         .sampled = values.OneOf(1, kSelects) == 1,
                         .values = static_cast<TopKValues>(values.OneOf(2, kValues))});
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCodec>> MakeDeviceCodec(const Codec& codec) {
  const std::string spec = codec.spec();
  BDN_ASSIGN_OR_RETURN(OptionValues values, OptionsOf(spec));
  constexpr std::array kScales = {"fp32", "bf16"};
  switch (codec.id()) {
    case CodecId::kNone:
      return MakeDeviceFloats(DType::kFloat32);
    case CodecId::kFp16:
      return MakeDeviceFloats(DType::kFloat16);
    case CodecId::kBf16:
      return MakeDeviceFloats(DType::kBFloat16);
    case CodecId::kOneBit:
      return MakeDeviceOneBit(values.Whole(0, 0, kAny), values.OneOf(1, kScales) == 1);
    case CodecId::kTwoBit:
      return MakeDeviceTwoBit(values.Whole(0, 0, kAny));
    case CodecId::kTopK:
      return MakeTopKOf(values);
    case CodecId::kRandomK:
      return MakeDeviceRandomK({.ratio = RealOf(0, values), .unbiased = values.Flag(1)});
    case CodecId::kBlocks:
      return MakeDeviceBlocks({.ratio = RealOf(0, values), .size = values.Whole(1, 1, kAny)});
    case CodecId::kDither:
      return MakeDitherOf(values);
    case CodecId::kInt8:
      return MakeIntegersOf(8, values);
    case CodecId::kInt4:
      return MakeIntegersOf(4, values);
    case CodecId::kInt2:
      return MakeIntegersOf(2, values);
    case CodecId::kSign:
      return MakeDeviceSign();
    default:
      return InvalidArgument("%s has no kernels for a device: encode it on the host", spec);
  }
}

absl::StatusOr<size_t> Outcome(const EncodeResult& result) {
  if (result.non_finite == EncodeResult::kAllFinite) return result.used_bytes;
  return InvalidArgument("element %d is %s", result.non_finite / 2,
                         result.non_finite % 2 != 0 ? "nan" : "infinite");
}

}  // namespace bdn
