#include "compressors/onebit.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/spec_text.h"
#include "compressors/block_signs.h"
#include "kernels/onebit_kernels.h"

namespace bdn {
namespace {

// The signs, as BlockSignsCodec takes them.
struct OneBits {
  static constexpr CodecId kId = CodecId::kOneBit;
  static constexpr size_t kBitmaps = 1;
  static constexpr float kFactor = 1.0f;
  // bfloat16 needs no lower limit: rounding to it stops at its own largest finite number.
  static constexpr float kMost = std::numeric_limits<float>::max();

  static void Pack(const float* p, size_t count, BlockMagnitudes /*scales*/,
                   BitmapsFrom<std::byte> to) {
    PackSigns(p, count, to.first);
  }
  static void PackAndSubtract(float* p, size_t count, BlockMagnitudes scales,
                              BitmapsFrom<std::byte> to) {
    PackSignsAndSubtract(p, count, scales, to.first);
  }
  static size_t PackFeedback(const FeedbackBlocks& step, BitmapsFrom<std::byte> to) {
    return PackSignsOfFeedback(step, to.first);
  }
  template <bool kAdd>
  static void Unpack(BitmapsFrom<const std::byte> from, size_t count, BlockMagnitudes scales,
                     float factor, float* y) {
    if constexpr (kAdd) {
      UnpackSignsAndAdd(from.first, count, scales, factor, y);
    } else {
      UnpackSigns(from.first, count, scales, factor, y);
    }
  }
};

}  // namespace

std::shared_ptr<const Codec> MakeOneBit(size_t block, bool bfloat_scales) {
  std::vector<std::string> options;
  if (block != 0) options.push_back(absl::StrFormat("block=%d", block));
  if (bfloat_scales) options.push_back("scale=bf16");
  return std::make_shared<BlockSignsCodec<OneBits>>(
      BlockScales{.block = block, .bfloat = bfloat_scales}, SpecText("onebit", options));
}

}  // namespace bdn
