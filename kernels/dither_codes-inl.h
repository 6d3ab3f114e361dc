// The layout of dither's codes, 1 to 8 bits each, in a payload: compressors/dither.h defines it.
// Included once for each target.

#if defined(BANDONEON_KERNELS_DITHER_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BANDONEON_KERNELS_DITHER_CODES_INL_H_
#undef BANDONEON_KERNELS_DITHER_CODES_INL_H_
#else
#define BANDONEON_KERNELS_DITHER_CODES_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = 16;
constexpr size_t kGroup = 512;
constexpr size_t kRows = kGroup / kLanes;
constexpr size_t kRowBytes = 4 * kLanes;

using Tag = hn::CappedTag<float, kLanes>;
using UTag = hn::RebindToUnsigned<Tag>;
using ITag = hn::RebindToSigned<Tag>;
using Vector = hn::Vec<Tag>;
using UVector = hn::Vec<UTag>;
constexpr size_t kVectorLanes = hn::MaxLanes(Tag());

// StoreWords and LoadWords access words in the payload, which are not aligned.
HWY_INLINE void StoreWords(UVector words, uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  const uint32_t word = hn::GetLane(words);
  std::memcpy(to, &word, sizeof(word));
#else
  const hn::Repartition<uint8_t, UTag> d8;
  hn::StoreU(hn::BitCast(d8, words), d8, to);
#endif
}
HWY_INLINE UVector LoadWords(const uint8_t* from) {
#if HWY_TARGET == HWY_SCALAR
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return hn::Set(UTag(), word);
#else
  return hn::BitCast(UTag(), hn::LoadU(hn::Repartition<uint8_t, UTag>(), from));
#endif
}

// Packs row kRow of a column of lanes, and the rows after it. `word` is filled from its low bits up
// and stored when it is full.
template <int kBits, size_t kRow>
HWY_INLINE void PackRows(const uint32_t* HWY_RESTRICT codes, UVector word, uint8_t* to) {
  if constexpr (kRow < kRows) {
    constexpr size_t kBit = kRow * kBits;
    constexpr int kShift = kBit % 32;
    const auto code = hn::Load(UTag(), codes + kRow * kLanes);
    word = kShift == 0 ? code : hn::Or(word, hn::ShiftLeft<kShift>(code));
    if constexpr (kShift + kBits >= 32) StoreWords(word, to + kBit / 32 * kRowBytes);
    if constexpr (kShift + kBits > 32) word = hn::ShiftRight<32 - kShift>(code);
    PackRows<kBits, kRow + 1>(codes, word, to);
  }
}

// Unpacks row kRow of a column of lanes, and the rows after it. `word` holds the bits that were
// loaded last.
template <int kBits, size_t kRow>
HWY_INLINE void UnpackRows(const uint8_t* from, UVector word, uint32_t* HWY_RESTRICT codes) {
  if constexpr (kRow < kRows) {
    const UTag d;
    constexpr size_t kBit = kRow * kBits;
    constexpr int kShift = kBit % 32;
    if constexpr (kShift == 0) word = LoadWords(from + kBit / 32 * kRowBytes);
    auto code = hn::ShiftRight<kShift>(word);
    if constexpr (kShift + kBits > 32) {
      word = LoadWords(from + (kBit / 32 + 1) * kRowBytes);
      code = hn::Or(code, hn::ShiftLeft<32 - kShift>(word));
    }
    hn::Store(hn::And(code, hn::Set(d, (1u << kBits) - 1)), d, codes + kRow * kLanes);
    UnpackRows<kBits, kRow + 1>(from, word, codes);
  }
}

template <int kBits>
HWY_INLINE void PackGroupOf(const uint32_t* HWY_RESTRICT codes, uint8_t* to) {
  for (size_t l = 0; l < kLanes; l += kVectorLanes) {
    PackRows<kBits, 0>(codes + l, hn::Zero(UTag()), to + 4 * l);
  }
}
template <int kBits>
HWY_INLINE void UnpackGroupOf(const uint8_t* from, uint32_t* HWY_RESTRICT codes) {
  for (size_t l = 0; l < kLanes; l += kVectorLanes) {
    UnpackRows<kBits, 0>(from + 4 * l, hn::Zero(UTag()), codes + l);
  }
}

#define BDN_WITH_BITS(FUNCTION, ...)   \
  switch (bits) {                      \
    case 1:                            \
      return FUNCTION<1>(__VA_ARGS__); \
    case 2:                            \
      return FUNCTION<2>(__VA_ARGS__); \
    case 3:                            \
      return FUNCTION<3>(__VA_ARGS__); \
    case 4:                            \
      return FUNCTION<4>(__VA_ARGS__); \
    case 5:                            \
      return FUNCTION<5>(__VA_ARGS__); \
    case 6:                            \
      return FUNCTION<6>(__VA_ARGS__); \
    case 7:                            \
      return FUNCTION<7>(__VA_ARGS__); \
    default:                           \
      return FUNCTION<8>(__VA_ARGS__); \
  }

inline void PackGroup(const uint32_t* codes, uint32_t bits, uint8_t* to) {
  BDN_WITH_BITS(PackGroupOf, codes, to)
}
inline void UnpackGroup(const uint8_t* from, uint32_t bits, uint32_t* codes) {
  BDN_WITH_BITS(UnpackGroupOf, from, codes)
}
#undef BDN_WITH_BITS

// Packs the last elements, which are fewer than a group.
inline void PackTail(const uint32_t* codes, size_t n, uint32_t bits, uint8_t* to) {
  uint32_t held = 0;
  uint32_t filled = 0;
  for (size_t i = 0; i < n; ++i) {
    held |= codes[i] << filled;
    for (filled += bits; filled >= 8; filled -= 8, held >>= 8) *to++ = static_cast<uint8_t>(held);
  }
  if (filled > 0) *to = static_cast<uint8_t>(held);
}

// Unpacks the last elements, and returns the bits past the last code.
inline uint32_t UnpackTail(const uint8_t* from, size_t n, uint32_t bits, uint32_t* codes) {
  uint32_t held = 0;
  uint32_t filled = 0;
  for (size_t i = 0; i < n; ++i) {
    if (filled < bits) {
      held |= static_cast<uint32_t>(*from++) << filled;
      filled += 8;
    }
    codes[i] = held & ((1u << bits) - 1);
    held >>= bits;
    filled -= bits;
  }
  return held;
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#endif
