#include "compressors/twobit.h"

#include "absl/strings/str_format.h"
#include "compressors/block_signs.h"
#include "kernels/twobit_kernels.h"

namespace bdn {
namespace {

// The two bits of an element, as BlockSignsCodec takes them. twobit.h explains kFactor and kMost.
struct TwoBits {
  static constexpr CodecId kId = CodecId::kTwoBit;
  static constexpr size_t kBitmaps = 2;
  static constexpr float kFactor = 0.624f;
  static constexpr float kMost = 0x1.54p126f;

  static void Pack(const float* p, size_t count, BlockMagnitudes scales,
                   BitmapsFrom<std::byte> to) {
    PackTwoBits(p, count, scales, to.first, to.first + to.bytes);
  }
  static void PackAndSubtract(float* p, size_t count, BlockMagnitudes scales,
                              BitmapsFrom<std::byte> to) {
    PackTwoBitsAndSubtract(p, count, scales, to.first, to.first + to.bytes);
  }
  static size_t PackFeedback(const FeedbackBlocks& step, BitmapsFrom<std::byte> to) {
    return PackTwoBitsOfFeedback(step, to.first, to.first + to.bytes);
  }
  template <bool kAdd>
  static void Unpack(BitmapsFrom<const std::byte> from, size_t count, BlockMagnitudes scales,
                     float factor, float* y) {
    const std::byte* const large = from.first + from.bytes;
    if constexpr (kAdd) {
      UnpackTwoBitsAndAdd(from.first, large, count, scales, factor, y);
    } else {
      UnpackTwoBits(from.first, large, count, scales, factor, y);
    }
  }
};

}  // namespace

std::shared_ptr<const Codec> MakeTwoBit(size_t block) {
  return std::make_shared<BlockSignsCodec<TwoBits>>(
      BlockScales{.block = block, .bfloat = true},
      block == 0 ? "twobit" : absl::StrFormat("twobit(block=%d)", block));
}

}  // namespace bdn
