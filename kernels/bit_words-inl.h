// Words of 32 bits, a bit for each element, which the kernels of onebit, sign and twobit share.
// Included once for each target.

#if defined(BANDONEON_KERNELS_BIT_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BANDONEON_KERNELS_BIT_WORDS_INL_H_
#undef BANDONEON_KERNELS_BIT_WORDS_INL_H_
#else
#define BANDONEON_KERNELS_BIT_WORDS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/block_magnitudes.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kWord = 32;

using Tag = hn::CappedTag<float, 16>;
constexpr size_t kVectorLanes = hn::MaxLanes(Tag());
using Vector = hn::Vec<Tag>;

using Mask = hn::Mask<Tag>;

constexpr size_t kWordVectors = kWord / kVectorLanes;

// Returns a word made of the masks of kWordVectors vectors: bit i is element i's.
#if HWY_TARGET == HWY_SCALAR

HWY_INLINE uint32_t WordOf(const Mask* HWY_RESTRICT masks) {
  uint32_t word = 0;
  for (size_t i = 0; i < kWord; ++i) word |= hn::AllTrue(Tag(), masks[i]) ? 1u << i : 0u;
  return word;
}

#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

HWY_INLINE uint32_t WordOf(const Mask* HWY_RESTRICT masks) {
  uint8_t bits[8];
  hn::StoreMaskBits(Tag(), masks[0], bits);
  hn::StoreMaskBits(Tag(), masks[1], bits + 2);
  uint32_t word;
  std::memcpy(&word, bits, sizeof(word));
  return word;
}

#else

// Four masks at a time become a vector of bytes, and that becomes one mask. This takes fewer
// instructions than a mask from each vector, and instructions are what bounds these loops.
HWY_INLINE uint32_t WordOf(const Mask* HWY_RESTRICT masks) {
  static_assert(kVectorLanes == 4 || kVectorLanes == 8);
  const hn::Repartition<uint8_t, Tag> d8;
  const hn::Repartition<uint16_t, Tag> d16;
  const auto bytes = [&](size_t v)
                         HWY_ATTR { return hn::BitCast(d8, hn::VecFromMask(Tag(), masks[v])); };
  alignas(16) constexpr uint8_t kByVector[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                 2, 6, 10, 14, 3, 7, 11, 15};
  const auto by_vector = hn::LoadDup128(d8, kByVector);
  uint8_t bits[8];
  for (size_t v = 0; v < kWordVectors; v += 4) {
    // Byte k of lane l comes from lane l of vector v + k.
    const auto low = hn::BitCast(d16, hn::OddEven(bytes(v + 1), bytes(v)));
    const auto high = hn::BitCast(d16, hn::OddEven(bytes(v + 3), bytes(v + 2)));
    auto four = hn::TableLookupBytes(hn::BitCast(d8, hn::OddEven(high, low)), by_vector);
    if constexpr (kVectorLanes == 8) {
      // So far each half of the vector has four lanes of each of the four vectors; this puts them
      // in order.
      const hn::Repartition<uint32_t, Tag> d32;
      alignas(32) constexpr uint32_t kHalves[8] = {0, 4, 1, 5, 2, 6, 3, 7};
      four = hn::BitCast(
          d8, hn::TableLookupLanes(hn::BitCast(d32, four), hn::SetTableIndices(d32, kHalves)));
    }
    hn::StoreMaskBits(d8, hn::MaskFromVec(four), bits + v * kVectorLanes / 8);
  }
  uint32_t word;
  std::memcpy(&word, bits, sizeof(word));
  return word;
}

#endif

// StoreWord and LoadWord access the word that begins with element i, a multiple of 32. Words need
// no alignment.
HWY_INLINE void StoreWord(void* words, size_t i, uint32_t word) {
  std::memcpy(static_cast<char*>(words) + i / 8, &word, sizeof(word));
}
HWY_INLINE uint32_t LoadWord(const void* words, size_t i) {
  uint32_t word;
  std::memcpy(&word, static_cast<const char*>(words) + i / 8, sizeof(word));
  return word;
}

// Calls body(begin, end, magnitude) for each block of [0, n), in order.
template <class Body>
HWY_INLINE void ForEachBlock(size_t n, BlockMagnitudes magnitudes, const Body& body) {
  const float* value = magnitudes.values;
  for (size_t begin = 0; begin < n;) {
    const size_t end = begin + std::min(n - begin, magnitudes.block);
    body(begin, end, *value++);
    begin = end;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#endif
