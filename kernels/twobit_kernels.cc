#include "kernels/twobit_kernels.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/twobit_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"
#include "kernels/bit_words-inl.h"
#include "kernels/feedback_blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct CodeWords {
  uint32_t negative = 0;
  uint32_t large = 0;
};

// Packs one word of each. Writes p - decoded to `left`, which may be p, or is null where it is not
// wanted.
template <bool kSubtract>
HWY_INLINE CodeWords WordCodes(const float* p, Vector magnitude, float* left) {
  const Tag d;
  const auto two = hn::Add(magnitude, magnitude);
  const auto three = hn::Mul(hn::Set(d, 3.0f), magnitude);
  Mask negative[kWordVectors];
  Mask large[kWordVectors];
  for (size_t v = 0; v < kWordVectors; ++v) {
    const auto value = hn::LoadU(d, p + v * kVectorLanes);
    negative[v] = hn::Lt(value, hn::Zero(d));
    large[v] = hn::Gt(hn::Abs(value), two);
    if constexpr (kSubtract) {
      const auto level = hn::IfThenElse(large[v], three, magnitude);
      hn::StoreU(hn::Sub(value, hn::IfThenElse(negative[v], hn::Neg(level), level)), d,
                 left + v * kVectorLanes);
    }
  }
  return {WordOf(negative), WordOf(large)};
}

template <bool kSubtract>
HWY_INLINE void PackLoop(const float* p, size_t n, BlockMagnitudes magnitudes,
                         void* HWY_RESTRICT negative, void* HWY_RESTRICT large, float* left) {
  const auto store = [&](size_t i, CodeWords words) HWY_ATTR {
    StoreWord(negative, i, words.negative);
    StoreWord(large, i, words.large);
  };
  ForEachBlock(n, magnitudes, [&](size_t begin, size_t end, float magnitude) HWY_ATTR {
    const auto of_block = hn::Set(Tag(), magnitude);
    size_t i = begin;
    for (; i + kWord <= end; i += kWord) {
      store(i, WordCodes<kSubtract>(p + i, of_block, kSubtract ? left + i : nullptr));
    }
    if (i == end) return;
    float tail[kWord] = {};
    std::memcpy(tail, p + i, (end - i) * sizeof(float));
    store(i, WordCodes<kSubtract>(tail, of_block, tail));
    if constexpr (kSubtract) std::memcpy(left + i, tail, (end - i) * sizeof(float));
  });
}

void PackTwoBitsKernel(const float* p, size_t n, BlockMagnitudes magnitudes, void* negative,
                       void* large) {
  PackLoop<false>(p, n, magnitudes, negative, large, nullptr);
}
void PackTwoBitsAndSubtractKernel(float* p, size_t n, BlockMagnitudes magnitudes, void* negative,
                                  void* large) {
  PackLoop<true>(p, n, magnitudes, negative, large, p);
}

size_t PackTwoBitsOfFeedbackKernel(const FeedbackBlocks& step, void* negative, void* large) {
  float* const residual = step.residual;
  return ForEachFeedbackChunk(step, [=](const float* p, size_t at, float scale) HWY_ATTR {
    const auto of_block = hn::Set(Tag(), scale);
    for (size_t i = 0; i < kChunk; i += kWord) {
      const CodeWords words = WordCodes<true>(p + i, of_block, residual + at + i);
      StoreWord(negative, at + i, words.negative);
      StoreWord(large, at + i, words.large);
    }
  });
}

// The bits of a block's two levels: those of the small one, and those in which the large one
// differs. With them an exclusive or picks a level without a branch.
struct LevelBits {
  uint32_t small;
  uint32_t differing;
};

// Decodes a word. The loop is plain: it shifts by lane, which compilers turn into vectors.
template <bool kAdd>
HWY_INLINE void UnpackWord(CodeWords words, LevelBits levels, size_t count, float* HWY_RESTRICT y) {
  for (uint32_t j = 0; j < count; ++j) {
    const uint32_t level = levels.small ^ (levels.differing & (0u - (words.large >> j & 1u)));
    const float value = std::bit_cast<float>(level ^ (words.negative << (31 - j) & 0x80000000u));
    y[j] = kAdd ? y[j] + value : value;
  }
}

template <bool kAdd>
HWY_INLINE void UnpackLoop(const void* HWY_RESTRICT negative, const void* HWY_RESTRICT large,
                           size_t n, BlockMagnitudes magnitudes, float factor,
                           float* HWY_RESTRICT y) {
  const auto load = [&](size_t i) { return CodeWords{LoadWord(negative, i), LoadWord(large, i)}; };
  ForEachBlock(n, magnitudes, [&](size_t begin, size_t end, float magnitude) HWY_ATTR {
    const auto small = std::bit_cast<uint32_t>(factor * magnitude);
    const LevelBits levels = {small, small ^ std::bit_cast<uint32_t>(factor * (3.0f * magnitude))};
    size_t i = begin;
    for (; i + kWord <= end; i += kWord) UnpackWord<kAdd>(load(i), levels, kWord, y + i);
    if (i < end) UnpackWord<kAdd>(load(i), levels, end - i, y + i);
  });
}

void UnpackTwoBitsKernel(const void* negative, const void* large, size_t n,
                         BlockMagnitudes magnitudes, float factor, float* y) {
  UnpackLoop<false>(negative, large, n, magnitudes, factor, y);
}
void UnpackTwoBitsAndAddKernel(const void* negative, const void* large, size_t n,
                               BlockMagnitudes magnitudes, float factor, float* y) {
  UnpackLoop<true>(negative, large, n, magnitudes, factor, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(PackTwoBitsKernel);
HWY_EXPORT(PackTwoBitsAndSubtractKernel);
HWY_EXPORT(PackTwoBitsOfFeedbackKernel);
HWY_EXPORT(UnpackTwoBitsKernel);
HWY_EXPORT(UnpackTwoBitsAndAddKernel);

void PackTwoBits(const float* p, size_t n, BlockMagnitudes magnitudes, void* negative,
                 void* large) {
  HWY_DYNAMIC_DISPATCH(PackTwoBitsKernel)(p, n, magnitudes, negative, large);
}
void PackTwoBitsAndSubtract(float* p, size_t n, BlockMagnitudes magnitudes, void* negative,
                            void* large) {
  HWY_DYNAMIC_DISPATCH(PackTwoBitsAndSubtractKernel)(p, n, magnitudes, negative, large);
}
size_t PackTwoBitsOfFeedback(const FeedbackBlocks& step, void* negative, void* large) {
  return HWY_DYNAMIC_DISPATCH(PackTwoBitsOfFeedbackKernel)(step, negative, large);
}
void UnpackTwoBits(const void* negative, const void* large, size_t n, BlockMagnitudes magnitudes,
                   float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(UnpackTwoBitsKernel)(negative, large, n, magnitudes, factor, y);
}
void UnpackTwoBitsAndAdd(const void* negative, const void* large, size_t n,
                         BlockMagnitudes magnitudes, float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(UnpackTwoBitsAndAddKernel)(negative, large, n, magnitudes, factor, y);
}

}  // namespace bdn
#endif  // HWY_ONCE
