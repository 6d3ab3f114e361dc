#include "compressors/kernels/dither_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressors/kernels/dither_kernels.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {

constexpr size_t kLanes = 16;
constexpr size_t kRun = 1024;
constexpr size_t kGroup = 512;
constexpr size_t kRows = kGroup / kLanes;
constexpr size_t kRowBytes = 4 * kLanes;

using Tag = hn::CappedTag<float, kLanes>;
using UTag = hn::RebindToUnsigned<Tag>;
using ITag = hn::RebindToSigned<Tag>;
using Vector = hn::Vec<Tag>;
using UVector = hn::Vec<UTag>;
constexpr size_t kVectorLanes = hn::MaxLanes(Tag());
constexpr size_t kVectors = kLanes / kVectorLanes;

HWY_INLINE double JoinLanes(const float* lanes) {
  double joined[kLanes];
  for (size_t l = 0; l < kLanes; ++l) joined[l] = lanes[l];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) joined[l] += joined[l + width];
  }
  return joined[0];
}

HWY_INLINE double RunSquares(const float* HWY_RESTRICT p, size_t n) {
  const Tag d;
  Vector sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto value = hn::LoadU(d, p + i + v * kVectorLanes);
      sum[v] = hn::Add(sum[v], hn::Mul(value, value));
    }
  }
  HWY_ALIGN float lanes[kLanes];
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, lanes + v * kVectorLanes);
  for (size_t l = 0; i + l < n; ++l) lanes[l] += p[i + l] * p[i + l];
  return JoinLanes(lanes);
}

}  // namespace

double AddSquaresKernel(double total, const float* HWY_RESTRICT p, size_t n) {
  for (size_t i = 0; i < n; i += kRun) total += RunSquares(p + i, std::min(kRun, n - i));
  return total;
}

// Magnitudes compare as integers do, and NaN above all of them.
float LargestMagnitudeKernel(const float* HWY_RESTRICT p, size_t n) {
  const Tag d;
  const ITag di;
  constexpr size_t kStep = 4 * kVectorLanes;
  auto largest0 = hn::Zero(di);
  auto largest1 = largest0;
  auto largest2 = largest0;
  auto largest3 = largest0;
  size_t i = 0;
  const auto magnitudes = [&](size_t at)
                              HWY_ATTR { return hn::BitCast(di, hn::Abs(hn::LoadU(d, p + at))); };
  for (; i + kStep <= n; i += kStep) {
    largest0 = hn::Max(largest0, magnitudes(i));
    largest1 = hn::Max(largest1, magnitudes(i + kVectorLanes));
    largest2 = hn::Max(largest2, magnitudes(i + 2 * kVectorLanes));
    largest3 = hn::Max(largest3, magnitudes(i + 3 * kVectorLanes));
  }
  HWY_ALIGN int32_t lanes[kLanes] = {};
  hn::Store(hn::Max(hn::Max(largest0, largest1), hn::Max(largest2, largest3)), di, lanes);
  int32_t largest = 0;
  for (size_t l = 0; l < kVectorLanes; ++l) largest = std::max(largest, lanes[l]);
  for (; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(p[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

namespace {

// The halves of words, low ones first.
HWY_INLINE void StoreHalves(UVector words, uint16_t* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = static_cast<uint16_t>(hn::GetLane(words));
  to[1] = static_cast<uint16_t>(hn::GetLane(words) >> 16);
#else
  const hn::Repartition<uint16_t, UTag> d16;
  hn::Store(hn::BitCast(d16, words), d16, to);
#endif
}

// Element i's sixteen bits, of a group that begins with word `word` of the draw.
HWY_INLINE void DrawGroup(uint32_t k0, uint32_t k1, uint32_t word, uint16_t* HWY_RESTRICT bits) {
  const UTag d;
  constexpr uint32_t kGamma = 0x9E3779B9u;
  const auto a = hn::Set(d, 0x21F0AAADu);
  const auto b = hn::Set(d, 0x735A2D97u);
  const auto plus = hn::Set(d, k1);
  const auto step = hn::Set(d, static_cast<uint32_t>(kVectorLanes) * kGamma);
  auto counter =
      hn::Add(hn::Mul(hn::Iota(d, 0), hn::Set(d, kGamma)), hn::Set(d, word * kGamma + k0));
  for (size_t i = 0; i < kGroup; i += 2 * kVectorLanes) {
    auto x = hn::Xor(counter, hn::ShiftRight<16>(counter));
    x = hn::Mul(x, a);
    x = hn::Add(hn::Xor(x, hn::ShiftRight<15>(x)), plus);
    x = hn::Mul(x, b);
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    StoreHalves(x, bits + i);
    counter = hn::Add(counter, step);
  }
}

HWY_INLINE UVector LoadBits(const uint16_t* bits) {
  return hn::PromoteTo(UTag(), hn::Load(hn::Rebind<uint16_t, UTag>(), bits));
}

// How each kind finds the level of an element and what a level stands for.
// Split: `level`, and `sign`, the sign bit of what is decoded. Magnitude: of a level, not negative.
// Held: a residual, made finite where it can overflow.
struct Linear {
  explicit HWY_INLINE Linear(const DitherGrid& grid)
      : g(65536.0f * static_cast<float>(grid.levels) / grid.norm),
        step(grid.norm / static_cast<float>(grid.levels)),
        levels(grid.levels) {}
  HWY_INLINE void Split(Vector p, UVector random, UVector* level, UVector* sign) const {
    const Tag d;
    const UTag du;
    const auto fixed = hn::BitCast(du, hn::NearestInt(hn::Mul(hn::Abs(p), hn::Set(d, g))));
    *level = hn::Min(hn::ShiftRight<16>(hn::Add(fixed, random)), hn::Set(du, levels));
    *sign = hn::IfThenZeroElse(hn::Eq(*level, hn::Zero(du)),
                               hn::And(hn::BitCast(du, p), hn::Set(du, 0x80000000u)));
  }
  static HWY_INLINE Vector Held(Vector residual) { return residual; }
  HWY_INLINE Vector Magnitude(UVector level) const {
    const Tag d;
    return hn::Mul(hn::ConvertTo(d, hn::BitCast(ITag(), level)), hn::Set(d, step));
  }
  float g;
  float step;
  uint32_t levels;
};

struct Natural {
  explicit HWY_INLINE Natural(const DitherGrid& grid)
      : g(0x1p24f / grid.norm),
        least(std::bit_cast<float>((127u + 25u - grid.levels) << 23)),
        offset(64u - ((127u + 25u - grid.levels) << 23)),
        base(std::bit_cast<uint32_t>(grid.norm) - (grid.levels << 23)),
        levels(grid.levels) {}
  HWY_INLINE void Split(Vector p, UVector random, UVector* level, UVector* sign) const {
    const Tag d;
    const UTag du;
    const auto z = hn::Mul(hn::Abs(p), hn::Set(d, g));
    const auto small = hn::Lt(z, hn::Set(d, least));
    const auto w = hn::Add(z, hn::IfThenElseZero(small, hn::Set(d, least)));
    const auto sum =
        hn::Add(hn::Add(hn::BitCast(du, w), hn::Set(du, offset)), hn::ShiftLeft<7>(random));
    const auto up = hn::IfThenZeroElse(hn::RebindMask(du, small), hn::Set(du, 1u));
    *level = hn::Min(hn::Add(hn::ShiftRight<23>(sum), up), hn::Set(du, levels));
    *sign = hn::IfThenZeroElse(hn::Eq(*level, hn::Zero(du)),
                               hn::And(hn::BitCast(du, p), hn::Set(du, 0x80000000u)));
  }
  static HWY_INLINE Vector Held(Vector residual) { return residual; }
  HWY_INLINE Vector Magnitude(UVector level) const {
    const UTag du;
    const auto value = hn::Add(hn::ShiftLeft<23>(level), hn::Set(du, base));
    return hn::BitCast(Tag(), hn::IfThenZeroElse(hn::Eq(level, hn::Zero(du)), value));
  }
  float g;
  float least;
  uint32_t offset;
  uint32_t base;
  uint32_t levels;
};

// The two points: there is no level but the norm.
struct TwoPoints {
  explicit HWY_INLINE TwoPoints(const DitherGrid& grid)
      : g(32768.0f / grid.norm), norm(grid.norm) {}
  HWY_INLINE void Split(Vector p, UVector random, UVector* level, UVector* sign) const {
    const UTag du;
    const auto fixed = hn::BitCast(du, hn::NearestInt(hn::Mul(p, hn::Set(Tag(), g))));
    const auto sum = hn::Sub(hn::Add(fixed, random), hn::Set(du, 32768u));
    *level = hn::Zero(du);
    *sign = hn::And(sum, hn::Set(du, 0x80000000u));
  }
  // The point may lie across zero from the element.
  static HWY_INLINE Vector Held(Vector residual) {
    const auto largest = hn::Set(Tag(), 0x1.fffffep127f);
    return hn::Max(hn::Min(residual, largest), hn::Neg(largest));
  }
  HWY_INLINE Vector Magnitude(UVector /*level*/) const { return hn::Set(Tag(), norm); }
  float g;
  float norm;
};

template <bool kSubtract, class Kind, typename P>
HWY_INLINE void QuantizeGroup(P* HWY_RESTRICT p, const Kind kind, uint32_t bits,
                              const uint16_t* HWY_RESTRICT random, uint32_t* HWY_RESTRICT codes) {
  const Tag d;
  const UTag du;
  const int shift = static_cast<int>(32 - bits);
  for (size_t i = 0; i < kGroup; i += kVectorLanes) {
    const auto value = hn::LoadU(d, p + i);
    UVector level;
    UVector sign;
    kind.Split(value, LoadBits(random + i), &level, &sign);
    hn::Store(hn::Or(level, hn::ShiftRightSame(sign, shift)), du, codes + i);
    if constexpr (kSubtract) {
      const auto decoded = hn::Or(kind.Magnitude(level), hn::BitCast(d, sign));
      hn::StoreU(kind.Held(hn::Sub(value, decoded)), d, p + i);
    }
  }
}

// Words are where the payload puts them, aligned to nothing.
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

// Row kRow of a column of lanes: `word` is filled from below and stored when it is full.
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

void PackGroup(const uint32_t* codes, uint32_t bits, uint8_t* to) {
  BDN_WITH_BITS(PackGroupOf, codes, to)
}
void UnpackGroup(const uint8_t* from, uint32_t bits, uint32_t* codes) {
  BDN_WITH_BITS(UnpackGroupOf, from, codes)
}
#undef BDN_WITH_BITS

// The last elements, fewer than a group.
void PackTail(const uint32_t* codes, size_t n, uint32_t bits, uint8_t* to) {
  uint32_t held = 0;
  uint32_t filled = 0;
  for (size_t i = 0; i < n; ++i) {
    held |= codes[i] << filled;
    for (filled += bits; filled >= 8; filled -= 8, held >>= 8) *to++ = static_cast<uint8_t>(held);
  }
  if (filled > 0) *to = static_cast<uint8_t>(held);
}

// Returns the bits past the last code.
uint32_t UnpackTail(const uint8_t* from, size_t n, uint32_t bits, uint32_t* codes) {
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

template <bool kSubtract, class Kind, typename P>
void PackLoop(P* p, size_t n, const DitherGrid& grid, const Draw& draw, size_t first,
              uint8_t* codes) {
  const Kind kind(grid);
  const uint32_t bits = grid.bits();
  const size_t group_bytes = kGroup / 8 * bits;
  HWY_ALIGN uint16_t random[kGroup];
  HWY_ALIGN uint32_t unpacked[kGroup];
  size_t i = 0;
  for (; i + kGroup <= n; i += kGroup, codes += group_bytes) {
    DrawGroup(draw.k0(), draw.k1(), static_cast<uint32_t>((first + i) / 2), random);
    QuantizeGroup<kSubtract>(p + i, kind, bits, random, unpacked);
    PackGroup(unpacked, bits, codes);
  }
  if (i == n) return;
  HWY_ALIGN float tail[kGroup] = {};
  std::memcpy(tail, p + i, (n - i) * sizeof(float));
  DrawGroup(draw.k0(), draw.k1(), static_cast<uint32_t>((first + i) / 2), random);
  QuantizeGroup<kSubtract>(tail, kind, bits, random, unpacked);
  PackTail(unpacked, n - i, bits, codes);
  if constexpr (kSubtract) std::memcpy(p + i, tail, (n - i) * sizeof(float));
}

template <bool kSubtract, typename P>
HWY_INLINE void PackKind(P* p, size_t n, const DitherGrid& grid, const Draw& draw, size_t first,
                         void* codes) {
  auto* const to = static_cast<uint8_t*>(codes);
  if (grid.natural) return PackLoop<kSubtract, Natural>(p, n, grid, draw, first, to);
  if (grid.levels == 0) return PackLoop<kSubtract, TwoPoints>(p, n, grid, draw, first, to);
  PackLoop<kSubtract, Linear>(p, n, grid, draw, first, to);
}

}  // namespace

void DitherPackKernel(const float* p, size_t n, const DitherGrid& grid, const Draw& draw,
                      size_t first, void* codes) {
  PackKind<false>(p, n, grid, draw, first, codes);
}
void DitherPackAndSubtractKernel(float* p, size_t n, const DitherGrid& grid, const Draw& draw,
                                 size_t first, void* codes) {
  PackKind<true>(p, n, grid, draw, first, codes);
}

namespace {

template <bool kAdd, class Kind>
HWY_INLINE void DequantizeGroup(const uint32_t* HWY_RESTRICT codes, const Kind kind, uint32_t bits,
                                float scale, float* HWY_RESTRICT y) {
  const Tag d;
  const UTag du;
  const int shift = static_cast<int>(32 - bits);
  const auto levels = hn::Set(du, (1u << (bits - 1)) - 1);
  const auto times = hn::Set(d, scale);
  for (size_t i = 0; i < kGroup; i += kVectorLanes) {
    const auto code = hn::Load(du, codes + i);
    const auto sign = hn::And(hn::ShiftLeftSame(code, shift), hn::Set(du, 0x80000000u));
    const auto magnitude = hn::Mul(times, kind.Magnitude(hn::And(code, levels)));
    const auto value = hn::Xor(magnitude, hn::BitCast(d, sign));
    hn::StoreU(kAdd ? hn::Add(hn::LoadU(d, y + i), value) : value, d, y + i);
  }
}

template <bool kAdd, class Kind>
void UnpackLoop(const uint8_t* codes, size_t n, const DitherGrid& grid, float scale, float* y) {
  const Kind kind(grid);
  const uint32_t bits = grid.bits();
  const size_t group_bytes = kGroup / 8 * bits;
  HWY_ALIGN uint32_t unpacked[kGroup];
  size_t i = 0;
  for (; i + kGroup <= n; i += kGroup, codes += group_bytes) {
    UnpackGroup(codes, bits, unpacked);
    DequantizeGroup<kAdd>(unpacked, kind, bits, scale, y + i);
  }
  if (i == n) return;
  std::memset(unpacked, 0, sizeof(unpacked));
  UnpackTail(codes, n - i, bits, unpacked);
  HWY_ALIGN float tail[kGroup] = {};
  if (kAdd) std::memcpy(tail, y + i, (n - i) * sizeof(float));
  DequantizeGroup<kAdd>(unpacked, kind, bits, scale, tail);
  std::memcpy(y + i, tail, (n - i) * sizeof(float));
}

template <bool kAdd>
HWY_INLINE void UnpackKind(const void* codes, size_t n, const DitherGrid& grid, float scale,
                           float* y) {
  const auto* const from = static_cast<const uint8_t*>(codes);
  if (grid.natural) return UnpackLoop<kAdd, Natural>(from, n, grid, scale, y);
  if (grid.levels == 0) return UnpackLoop<kAdd, TwoPoints>(from, n, grid, scale, y);
  UnpackLoop<kAdd, Linear>(from, n, grid, scale, y);
}

}  // namespace

void DitherUnpackKernel(const void* codes, size_t n, const DitherGrid& grid, float scale,
                        float* y) {
  UnpackKind<false>(codes, n, grid, scale, y);
}
void DitherUnpackAndAddKernel(const void* codes, size_t n, const DitherGrid& grid, float scale,
                              float* y) {
  UnpackKind<true>(codes, n, grid, scale, y);
}

namespace {

// Nonzero where a code is above its levels or minus zero.
HWY_INLINE uint32_t BadCodes(const uint32_t* HWY_RESTRICT codes, size_t n, const DitherGrid& grid) {
  const uint32_t minus = 1u << (grid.bits() - 1);
  const uint32_t levels = grid.levels;
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i) {
    bad |= static_cast<uint32_t>((codes[i] & (minus - 1)) > levels) |
           static_cast<uint32_t>(codes[i] == minus);
  }
  return bad;
}

}  // namespace

bool DitherCodesAreGoodKernel(const void* codes, size_t n, const DitherGrid& grid) {
  const auto* from = static_cast<const uint8_t*>(codes);
  const uint32_t bits = grid.bits();
  HWY_ALIGN uint32_t unpacked[kGroup];
  uint32_t bad = 0;
  size_t i = 0;
  // With two points every bit is a code.
  for (; i + kGroup <= n; i += kGroup, from += kGroup / 8 * bits) {
    if (grid.levels == 0) continue;
    UnpackGroup(from, bits, unpacked);
    bad |= BadCodes(unpacked, kGroup, grid);
  }
  const uint32_t past = UnpackTail(from, n - i, bits, unpacked);
  if (grid.levels > 0) bad |= BadCodes(unpacked, n - i, grid);
  return (bad | past) == 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(AddSquaresKernel);
HWY_EXPORT(LargestMagnitudeKernel);
HWY_EXPORT(DitherPackKernel);
HWY_EXPORT(DitherPackAndSubtractKernel);
HWY_EXPORT(DitherUnpackKernel);
HWY_EXPORT(DitherUnpackAndAddKernel);
HWY_EXPORT(DitherCodesAreGoodKernel);

uint32_t DitherGrid::bits() const { return static_cast<uint32_t>(std::bit_width(levels)) + 1; }

double AddSquares(double total, const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(AddSquaresKernel)(total, p, n);
}
float LargestMagnitude(const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(LargestMagnitudeKernel)(p, n);
}
void DitherPack(const float* p, size_t n, const DitherGrid& grid, const Draw& draw, size_t first,
                void* codes) {
  HWY_DYNAMIC_DISPATCH(DitherPackKernel)(p, n, grid, draw, first, codes);
}
void DitherPackAndSubtract(float* p, size_t n, const DitherGrid& grid, const Draw& draw,
                           size_t first, void* codes) {
  HWY_DYNAMIC_DISPATCH(DitherPackAndSubtractKernel)(p, n, grid, draw, first, codes);
}
void DitherUnpack(const void* codes, size_t n, const DitherGrid& grid, float scale, float* y) {
  HWY_DYNAMIC_DISPATCH(DitherUnpackKernel)(codes, n, grid, scale, y);
}
void DitherUnpackAndAdd(const void* codes, size_t n, const DitherGrid& grid, float scale,
                        float* y) {
  HWY_DYNAMIC_DISPATCH(DitherUnpackAndAddKernel)(codes, n, grid, scale, y);
}
bool DitherCodesAreGood(const void* codes, size_t n, const DitherGrid& grid) {
  return HWY_DYNAMIC_DISPATCH(DitherCodesAreGoodKernel)(codes, n, grid);
}

size_t DitherCodeBytes(size_t n, uint32_t bits) {
  return n / kDitherGroup * (kDitherGroup / 8) * bits + (n % kDitherGroup * bits + 7) / 8;
}

}  // namespace bdn
#endif  // HWY_ONCE
