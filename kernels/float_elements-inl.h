// The reading and writing of elements of each floating type by the kernels. Included once for each
// target.

#if defined(BANDONEON_KERNELS_FLOAT_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BANDONEON_KERNELS_FLOAT_ELEMENTS_INL_H_
#undef BANDONEON_KERNELS_FLOAT_ELEMENTS_INL_H_
#else
#define BANDONEON_KERNELS_FLOAT_ELEMENTS_INL_H_
#endif

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/base/dtype.h"
#include "hwy/highway.h"

// Says whether the target itself converts float16 as we do: to nearest even by the instruction,
// whatever MXCSR says, subnormals included. The instructions of other architectures truncate or
// follow a mode.
#undef BDN_HAS_HALF_CONVERSIONS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define BDN_HAS_HALF_CONVERSIONS 1
#else
#define BDN_HAS_HALF_CONVERSIONS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
HWY_INLINE T LoadAt(const void* base, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
HWY_INLINE void StoreAt(void* base, size_t i, T value) {
  std::memcpy(static_cast<char*>(base) + i * sizeof(T), &value, sizeof(T));
}

HWY_INLINE uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
HWY_INLINE float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }

// Element types: the type that an element is stored as, the type that it is computed in, and the
// conversions between the two. This is float32.
struct Float32 {
  using Stored = float;
  using Math = float;
  static HWY_INLINE float Load(const void* base, size_t i) { return LoadAt<float>(base, i); }
  static HWY_INLINE void Store(void* base, size_t i, float value) { StoreAt(base, i, value); }
};

// The element type float64, which is computed in float64.
struct Float64 {
  using Stored = double;
  using Math = double;
  static HWY_INLINE double Load(const void* base, size_t i) { return LoadAt<double>(base, i); }
  static HWY_INLINE void Store(void* base, size_t i, double value) { StoreAt(base, i, value); }
};

// The element type float16, which is computed in float32.
struct Float16 {
  using Stored = uint16_t;
  using Math = float;
  static HWY_INLINE float Load(const void* base, size_t i) {
    const uint32_t half = LoadAt<uint16_t>(base, i);
    const uint32_t shifted = (half & 0x7fffu) << 13;
    const uint32_t normal = shifted + (112u << 23);
    const uint32_t special = shifted + (224u << 23);
    // This is exact: a subnormal's mantissa with the exponent of 2^-14 and its implicit bit, less
    // that bit.
    const uint32_t subnormal = BitsOf(FloatOf(shifted + (113u << 23)) - 0x1p-14f);
    const uint32_t small = shifted < (1u << 23) ? subnormal : normal;
    const uint32_t magnitude = shifted >= (31u << 23) ? special : small;
    return FloatOf(magnitude | (half & 0x8000u) << 16);
  }
  static HWY_INLINE void Store(void* base, size_t i, float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t finite = magnitude < 0x477fe000u ? magnitude : 0x477fe000u;  // 65504
    const uint32_t normal = (finite - (112u << 23) + 0xfffu + (finite >> 13 & 1u)) >> 13;
    // The last bit of the sum is worth 2^-24, the least subnormal half, so the addition rounds to
    // it.
    const uint32_t subnormal = BitsOf(FloatOf(finite) + 0.5f) - BitsOf(0.5f);
    const uint32_t rounded = finite < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude == 0x7f800000u ? 0x7c00u : 0x7e00u;
    const uint32_t half = magnitude >= 0x7f800000u ? special : rounded;
    StoreAt(base, i, static_cast<uint16_t>(half | (bits >> 16 & 0x8000u)));
  }
};

// The element type bfloat16, which is computed in float32.
struct BFloat16 {
  using Stored = uint16_t;
  using Math = float;
  static HWY_INLINE float Load(const void* base, size_t i) {
    return FloatOf(static_cast<uint32_t>(LoadAt<uint16_t>(base, i)) << 16);
  }
  static HWY_INLINE void Store(void* base, size_t i, float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t finite = magnitude < 0x7f7f0000u ? magnitude : 0x7f7f0000u;
    const uint32_t rounded = (finite + 0x7fffu + (finite >> 16 & 1u)) >> 16;
    const uint32_t special = magnitude >> 16 | (magnitude == 0x7f800000u ? 0u : 0x40u);
    const uint32_t half = magnitude >= 0x7f800000u ? special : rounded;
    StoreAt(base, i, static_cast<uint16_t>(half | (bits >> 16 & 0x8000u)));
  }
};

// Calls body(Float32()) and so on: with the element type that `dtype` stores, among those computed
// in float32. REQUIRES: it is one of them (for any other nothing is called).
template <typename Body>
HWY_INLINE auto WithElements(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat32:
      return body(Float32());
    case DType::kFloat16:
      return body(Float16());
    case DType::kBFloat16:
      return body(BFloat16());
    default:
      return decltype(body(Float32()))();
  }
}

// Does the same, with Float64 among the element types.
template <typename Body>
HWY_INLINE auto WithAnyElements(DType dtype, Body body) {
  return dtype == DType::kFloat64 ? body(Float64()) : WithElements(dtype, body);
}

// The bits of a float32 without its sign compare as magnitudes do. They are at least kNonFinite
// where the float is NaN or infinite.
constexpr int32_t kNonFinite = 0x7f800000;

using Tag = hn::CappedTag<float, 16>;
using ITag = hn::RebindToSigned<Tag>;
using UTag = hn::RebindToUnsigned<Tag>;
using Vector = hn::Vec<Tag>;
constexpr size_t kLanes = hn::MaxLanes(Tag());

// The vectors that a loop handles in one go: four are enough to hide the latency of a test.
constexpr size_t kStepVectors = 4;
constexpr size_t kStep = kStepVectors * kLanes;

// Whether LoadVector takes elements of the type.
template <typename From>
constexpr bool kHasVectors = std::is_same_v<From, Float32> ||
                             (BDN_HAS_HALF_CONVERSIONS && !std::is_same_v<From, Float64>);

// Loads elements [i, i + kLanes), wherever they lie: a payload is not aligned.
template <typename From>
HWY_INLINE Vector LoadVector(const void* base, size_t i) {
  const auto* const from = static_cast<const uint8_t*>(base) + i * sizeof(typename From::Stored);
  if constexpr (std::is_same_v<From, Float32>) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(Tag(), LoadAt<float>(from, 0));
#else
    return hn::BitCast(Tag(), hn::LoadU(hn::Repartition<uint8_t, Tag>(), from));
#endif
  } else {
#if BDN_HAS_HALF_CONVERSIONS
    const hn::Rebind<uint16_t, Tag> d16;
    const auto bits = hn::BitCast(d16, hn::LoadU(hn::Repartition<uint8_t, decltype(d16)>(), from));
    if constexpr (std::is_same_v<From, Float16>) {
      return hn::PromoteTo(Tag(), hn::BitCast(hn::Rebind<hwy::float16_t, Tag>(), bits));
    } else {
      return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(UTag(), bits)));
    }
#endif
  }
}

HWY_INLINE hn::Vec<ITag> Magnitudes(Vector v) { return hn::BitCast(ITag(), hn::Abs(v)); }

HWY_INLINE bool AllMagnitudesBelow(const Vector* step, int32_t limit) {
  const auto low = hn::Max(Magnitudes(step[0]), Magnitudes(step[1]));
  const auto high = hn::Max(Magnitudes(step[2]), Magnitudes(step[3]));
  const ITag di;
  return hn::AllTrue(di, hn::Lt(hn::Max(low, high), hn::Set(di, limit)));
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#endif
