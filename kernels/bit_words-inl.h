// Words of 32 bits, one of each element: what the kernels of onebit, sign and twobit share. Included
// once for each target.

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

template <class M>
HWY_INLINE uint32_t MaskBits(const Tag d, M mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(d, mask, bytes);
  uint32_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return bits;
}

// The word that begins with element i, a multiple of 32. Words need no alignment.
HWY_INLINE void StoreWord(void* words, size_t i, uint32_t word) {
  std::memcpy(static_cast<char*>(words) + i / 8, &word, sizeof(word));
}
HWY_INLINE uint32_t LoadWord(const void* words, size_t i) {
  uint32_t word;
  std::memcpy(&word, static_cast<const char*>(words) + i / 8, sizeof(word));
  return word;
}

// body(begin, end, magnitude) for each block of [0, n), in order.
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
