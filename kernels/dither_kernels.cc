#include "kernels/dither_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dither_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"
#include "kernels/clamp_to_finite-inl.h"
#include "kernels/dither_codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace {

// Stores the halves of words, the low half of each word first.
HWY_INLINE void StoreHalves(UVector words, uint16_t* HWY_RESTRICT to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = static_cast<uint16_t>(hn::GetLane(words));
  to[1] = static_cast<uint16_t>(hn::GetLane(words) >> 16);
#else
  const hn::Repartition<uint16_t, UTag> d16;
  hn::Store(hn::BitCast(d16, words), d16, to);
#endif
}

// Draws the sixteen bits of each element of a group that begins with word `word` of the draw. This
// is Draw::Bits16 by vectors: a word serves two elements.
HWY_INLINE void DrawGroup(uint32_t k0, uint32_t k1, uint32_t word, uint16_t* HWY_RESTRICT bits) {
  const UTag d;
  constexpr uint32_t kGamma = 0x9E3779B9u;
  const auto a = hn::Set(d, 0x21F0AAADu);
  const auto b = hn::Set(d, 0x735A2D97u);
  const auto plus = hn::Set(d, k1);
  // The counters of Draw::Word rise by this much from one vector to the next.
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

// Linear, Natural and TwoPoints find the level of an element, and the value that a level stands
// for, by the formulas of compressors/dither.h. Split sets `level`, and `sign` to the sign bit of
// the decoded value. Magnitude returns the value of a level, which is not negative. Residual
// returns the rest of an element, made finite where it can overflow.
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
  static HWY_INLINE Vector Residual(Vector left) { return left; }
  HWY_INLINE Vector Magnitude(UVector level) const {
    const Tag d;
    return hn::Mul(hn::ConvertTo(d, hn::BitCast(ITag(), level)), hn::Set(d, step));
  }
  float g;
  float step;
  uint32_t levels;
};

// Levels are powers of two: Split reads the level from the exponent of a sum, and Magnitude puts it
// into the exponent of the norm.
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
  static HWY_INLINE Vector Residual(Vector left) { return left; }
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

// The two points. There is no level but the norm.
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
  // The point may lie across zero from the element, so the difference may overflow.
  static HWY_INLINE Vector Residual(Vector left) { return ClampToFinite(Tag(), left); }
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
    // The sign becomes the highest bit of the code.
    hn::Store(hn::Or(level, hn::ShiftRightSame(sign, shift)), du, codes + i);
    if constexpr (kSubtract) {
      const auto decoded = hn::Or(kind.Magnitude(level), hn::BitCast(d, sign));
      hn::StoreU(kind.Residual(hn::Sub(value, decoded)), d, p + i);
    }
  }
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
  // The last elements are quantized in a group that is filled up with zeros, whose codes are
  // dropped.
  HWY_ALIGN float tail[kGroup] = {};
  std::memcpy(tail, p + i, (n - i) * sizeof(float));
  DrawGroup(draw.k0(), draw.k1(), static_cast<uint32_t>((first + i) / 2), random);
  QuantizeGroup<kSubtract>(tail, kind, bits, random, unpacked);
  PackTail(unpacked, n - i, bits, codes);
  if constexpr (kSubtract) std::memcpy(p + i, tail, (n - i) * sizeof(float));
}

// Each kind has a loop of its own, so that the choice is made once and not for each element.
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
  // The last elements are decoded in a group that is filled up with zeros.
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

// Returns a number that is not zero where a code is above its levels or minus zero.
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
  // With two points every bit is a valid code, and only the bits past the last are checked.
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

HWY_EXPORT(DitherPackKernel);
HWY_EXPORT(DitherPackAndSubtractKernel);
HWY_EXPORT(DitherUnpackKernel);
HWY_EXPORT(DitherUnpackAndAddKernel);
HWY_EXPORT(DitherCodesAreGoodKernel);

uint32_t DitherGrid::bits() const { return static_cast<uint32_t>(std::bit_width(levels)) + 1; }

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
