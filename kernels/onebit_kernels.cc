#include "kernels/onebit_kernels.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/onebit_kernels.cc"
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

HWY_INLINE uint32_t WordSigns(const float* HWY_RESTRICT p) {
  const Tag d;
  Mask negative[kWordVectors];
  for (size_t v = 0; v < kWordVectors; ++v) {
    negative[v] = hn::Lt(hn::LoadU(d, p + v * kVectorLanes), hn::Zero(d));
  }
  return WordOf(negative);
}

// Packs a word, and writes p - decoded to `left`, which may be p.
HWY_INLINE uint32_t WordSignsAndSubtract(const float* p, float* left, Vector plus, Vector minus) {
  const Tag d;
  Mask negative[kWordVectors];
  for (size_t v = 0; v < kWordVectors; ++v) {
    const auto value = hn::LoadU(d, p + v * kVectorLanes);
    negative[v] = hn::Lt(value, hn::Zero(d));
    hn::StoreU(hn::Sub(value, hn::IfThenElse(negative[v], minus, plus)), d,
               left + v * kVectorLanes);
  }
  return WordOf(negative);
}

void PackSignsKernel(const float* HWY_RESTRICT p, size_t n, void* HWY_RESTRICT words) {
  size_t i = 0;
  for (; i + kWord <= n; i += kWord) StoreWord(words, i, WordSigns(p + i));
  if (i == n) return;
  // Zeros set no bits past n.
  float tail[kWord] = {};
  std::memcpy(tail, p + i, (n - i) * sizeof(float));
  StoreWord(words, i, WordSigns(tail));
}

void PackSignsAndSubtractKernel(float* HWY_RESTRICT p, size_t n, BlockMagnitudes magnitudes,
                                void* HWY_RESTRICT words) {
  const Tag d;
  ForEachBlock(n, magnitudes, [&](size_t begin, size_t end, float magnitude) HWY_ATTR {
    const auto plus = hn::Set(d, magnitude);
    const auto minus = hn::Neg(plus);
    size_t i = begin;
    for (; i + kWord <= end; i += kWord) {
      StoreWord(words, i, WordSignsAndSubtract(p + i, p + i, plus, minus));
    }
    if (i == end) return;
    float tail[kWord] = {};
    std::memcpy(tail, p + i, (end - i) * sizeof(float));
    StoreWord(words, i, WordSignsAndSubtract(tail, tail, plus, minus));
    std::memcpy(p + i, tail, (end - i) * sizeof(float));
  });
}

size_t PackSignsOfFeedbackKernel(const FeedbackBlocks& step, void* words) {
  float* const residual = step.residual;
  return ForEachFeedbackChunk(step, [=](const float* p, size_t at, float scale) HWY_ATTR {
    const auto plus = hn::Set(Tag(), scale);
    const auto minus = hn::Neg(plus);
    for (size_t i = 0; i < kChunk; i += kWord) {
      StoreWord(words, at + i, WordSignsAndSubtract(p + i, residual + at + i, plus, minus));
    }
  });
}

// Decodes a word. The loop is plain: it shifts by lane, which compilers turn into vectors.
template <bool kAdd>
HWY_INLINE void UnpackWord(uint32_t word, uint32_t magnitude, size_t count, float* HWY_RESTRICT y) {
  for (uint32_t j = 0; j < count; ++j) {
    const float value = std::bit_cast<float>(magnitude ^ (word << (31 - j) & 0x80000000u));
    y[j] = kAdd ? y[j] + value : value;
  }
}

template <bool kAdd>
HWY_INLINE void UnpackLoop(const void* HWY_RESTRICT words, size_t n, BlockMagnitudes magnitudes,
                           float factor, float* HWY_RESTRICT y) {
  ForEachBlock(n, magnitudes, [&](size_t begin, size_t end, float magnitude) HWY_ATTR {
    const uint32_t bits = std::bit_cast<uint32_t>(factor * magnitude);
    size_t i = begin;
    for (; i + kWord <= end; i += kWord) UnpackWord<kAdd>(LoadWord(words, i), bits, kWord, y + i);
    if (i < end) UnpackWord<kAdd>(LoadWord(words, i), bits, end - i, y + i);
  });
}

void UnpackSignsKernel(const void* words, size_t n, BlockMagnitudes magnitudes, float factor,
                       float* y) {
  UnpackLoop<false>(words, n, magnitudes, factor, y);
}
void UnpackSignsAndAddKernel(const void* words, size_t n, BlockMagnitudes magnitudes, float factor,
                             float* y) {
  UnpackLoop<true>(words, n, magnitudes, factor, y);
}

struct SignWords {
  uint32_t negative = 0;
  uint32_t zero = 0;
};

// Packs one word of each. Leaves bits in `not_finite` where p - p is not 0, which is where p is not
// finite. P is float where p - decoded is written back, and const float where p stays.
template <class P>
HWY_INLINE SignWords WordSignsAndZeros(P* HWY_RESTRICT p, Vector* HWY_RESTRICT not_finite) {
  const Tag d;
  Mask negative[kWordVectors];
  Mask zero[kWordVectors];
  for (size_t v = 0; v < kWordVectors; ++v) {
    const auto value = hn::LoadU(d, p + v * kVectorLanes);
    negative[v] = hn::Lt(value, hn::Zero(d));
    zero[v] = hn::Eq(value, hn::Zero(d));
    *not_finite = hn::Or(*not_finite, hn::Sub(value, value));
    if constexpr (!std::is_const_v<P>) {
      const auto sign = hn::IfThenElse(negative[v], hn::Set(d, -1.0f), hn::Set(d, 1.0f));
      hn::StoreU(hn::Sub(value, hn::IfThenZeroElse(zero[v], sign)), d, p + v * kVectorLanes);
    }
  }
  return {WordOf(negative), WordOf(zero)};
}

template <class P>
HWY_INLINE PackedSigns PackSignsAndZerosLoop(P* HWY_RESTRICT p, size_t n, void* HWY_RESTRICT words,
                                             void* HWY_RESTRICT zeros) {
  const Tag d;
  Vector not_finite = hn::Zero(d);
  uint32_t any_zero = 0;
  const auto store = [&](size_t i, SignWords packed) HWY_ATTR {
    StoreWord(words, i, packed.negative);
    StoreWord(zeros, i, packed.zero);
    any_zero |= packed.zero;
  };
  size_t i = 0;
  for (; i + kWord <= n; i += kWord) store(i, WordSignsAndZeros(p + i, &not_finite));
  if (i < n) {
    float tail[kWord];
    std::fill_n(tail, kWord, 1.0f);  // ones set no bits past n
    std::memcpy(tail, p + i, (n - i) * sizeof(float));
    store(i, WordSignsAndZeros<P>(tail, &not_finite));
    if constexpr (!std::is_const_v<P>) std::memcpy(p + i, tail, (n - i) * sizeof(float));
  }
  return {any_zero != 0, hn::AllTrue(d, hn::Eq(not_finite, hn::Zero(d)))};
}

PackedSigns PackSignsAndZerosKernel(const float* p, size_t n, void* words, void* zeros) {
  return PackSignsAndZerosLoop(p, n, words, zeros);
}
PackedSigns PackSignsAndZerosAndSubtractKernel(float* p, size_t n, void* words, void* zeros) {
  return PackSignsAndZerosLoop(p, n, words, zeros);
}

// Does as UnpackWord, except that a zero keeps nothing but the sign of the magnitude, as scale * 0
// does.
template <bool kAdd>
HWY_INLINE void UnpackWordAndZeros(SignWords words, uint32_t magnitude, size_t count,
                                   float* HWY_RESTRICT y) {
  for (uint32_t j = 0; j < count; ++j) {
    const uint32_t kept = 0x80000000u | ((words.zero >> j & 1) - 1);
    const uint32_t sign = words.negative << (31 - j) & 0x80000000u;
    const float value = std::bit_cast<float>((magnitude ^ sign) & kept);
    y[j] = kAdd ? y[j] + value : value;
  }
}

template <bool kAdd>
HWY_INLINE void UnpackZerosLoop(const void* HWY_RESTRICT words, const void* HWY_RESTRICT zeros,
                                size_t n, float magnitude, float* HWY_RESTRICT y) {
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const auto load = [&](size_t i) { return SignWords{LoadWord(words, i), LoadWord(zeros, i)}; };
  size_t i = 0;
  for (; i + kWord <= n; i += kWord) UnpackWordAndZeros<kAdd>(load(i), bits, kWord, y + i);
  if (i < n) UnpackWordAndZeros<kAdd>(load(i), bits, n - i, y + i);
}

void UnpackSignsAndZerosKernel(const void* words, const void* zeros, size_t n, float magnitude,
                               float* y) {
  UnpackZerosLoop<false>(words, zeros, n, magnitude, y);
}
void UnpackSignsAndZerosAndAddKernel(const void* words, const void* zeros, size_t n,
                                     float magnitude, float* y) {
  UnpackZerosLoop<true>(words, zeros, n, magnitude, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(PackSignsKernel);
HWY_EXPORT(PackSignsAndSubtractKernel);
HWY_EXPORT(PackSignsOfFeedbackKernel);
HWY_EXPORT(UnpackSignsKernel);
HWY_EXPORT(UnpackSignsAndAddKernel);
HWY_EXPORT(PackSignsAndZerosKernel);
HWY_EXPORT(PackSignsAndZerosAndSubtractKernel);
HWY_EXPORT(UnpackSignsAndZerosKernel);
HWY_EXPORT(UnpackSignsAndZerosAndAddKernel);

void PackSigns(const float* p, size_t n, void* words) {
  HWY_DYNAMIC_DISPATCH(PackSignsKernel)(p, n, words);
}
void PackSignsAndSubtract(float* p, size_t n, BlockMagnitudes magnitudes, void* words) {
  HWY_DYNAMIC_DISPATCH(PackSignsAndSubtractKernel)(p, n, magnitudes, words);
}
size_t PackSignsOfFeedback(const FeedbackBlocks& step, void* words) {
  return HWY_DYNAMIC_DISPATCH(PackSignsOfFeedbackKernel)(step, words);
}
void UnpackSigns(const void* words, size_t n, BlockMagnitudes magnitudes, float factor, float* y) {
  HWY_DYNAMIC_DISPATCH(UnpackSignsKernel)(words, n, magnitudes, factor, y);
}
void UnpackSignsAndAdd(const void* words, size_t n, BlockMagnitudes magnitudes, float factor,
                       float* y) {
  HWY_DYNAMIC_DISPATCH(UnpackSignsAndAddKernel)(words, n, magnitudes, factor, y);
}
PackedSigns PackSignsAndZeros(const float* p, size_t n, void* words, void* zeros) {
  return HWY_DYNAMIC_DISPATCH(PackSignsAndZerosKernel)(p, n, words, zeros);
}
PackedSigns PackSignsAndZerosAndSubtract(float* p, size_t n, void* words, void* zeros) {
  return HWY_DYNAMIC_DISPATCH(PackSignsAndZerosAndSubtractKernel)(p, n, words, zeros);
}
void UnpackSignsAndZeros(const void* words, const void* zeros, size_t n, float magnitude,
                         float* y) {
  HWY_DYNAMIC_DISPATCH(UnpackSignsAndZerosKernel)(words, zeros, n, magnitude, y);
}
void UnpackSignsAndZerosAndAdd(const void* words, const void* zeros, size_t n, float magnitude,
                               float* y) {
  HWY_DYNAMIC_DISPATCH(UnpackSignsAndZerosAndAddKernel)(words, zeros, n, magnitude, y);
}

}  // namespace bdn
#endif  // HWY_ONCE
