#include "compressors/kernels/float_kernels.h"

#include <bit>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compressors/kernels/float_kernels.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

// The loops are plain: every compiler we use turns them into vectors of the target. Conversions are
// written without branches for that reason, and not with the target's own instructions, some of
// which truncate or ignore subnormals.

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

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

// How each element type is read as, and made from, the type it is computed in.
struct Float32 {
  using Stored = float;
  using Math = float;
  static HWY_INLINE float Load(const void* base, size_t i) { return LoadAt<float>(base, i); }
  static HWY_INLINE void Store(void* base, size_t i, float value) { StoreAt(base, i, value); }
};

struct Float64 {
  using Stored = double;
  using Math = double;
  static HWY_INLINE double Load(const void* base, size_t i) { return LoadAt<double>(base, i); }
  static HWY_INLINE void Store(void* base, size_t i, double value) { StoreAt(base, i, value); }
};

struct Float16 {
  using Stored = uint16_t;
  using Math = float;
  static HWY_INLINE float Load(const void* base, size_t i) {
    const uint32_t half = LoadAt<uint16_t>(base, i);
    const uint32_t shifted = (half & 0x7fffu) << 13;
    const uint32_t normal = shifted + (112u << 23);
    const uint32_t special = shifted + (224u << 23);
    // A subnormal's mantissa, given the exponent of 2^-14 and an implicit bit, less that bit:
    // exact.
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
    // The sum's last bit is worth 2^-24, the least subnormal half: the addition rounds to it.
    const uint32_t subnormal = BitsOf(FloatOf(finite) + 0.5f) - BitsOf(0.5f);
    const uint32_t rounded = finite < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude == 0x7f800000u ? 0x7c00u : 0x7e00u;
    const uint32_t half = magnitude >= 0x7f800000u ? special : rounded;
    StoreAt(base, i, static_cast<uint16_t>(half | (bits >> 16 & 0x8000u)));
  }
};

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

// A number that is at least kNonFinite exactly when the value is NaN or infinite.
HWY_INLINE int32_t Magnitude(float value) {
  return static_cast<int32_t>(BitsOf(value) & 0x7fffffffu);
}
HWY_INLINE int32_t Magnitude(double value) {
  return static_cast<int32_t>(std::bit_cast<uint64_t>(value) >> 32 & 0x7fffffffu);
}
HWY_INLINE constexpr int32_t NonFinite(float) { return 0x7f800000; }
HWY_INLINE constexpr int32_t NonFinite(double) { return 0x7ff00000; }

template <typename From>
HWY_INLINE int32_t LargestMagnitude(const void* x, size_t n, float scale) {
  int32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t magnitude = Magnitude(scale * From::Load(x, i));
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

template <typename From>
size_t FirstNonFiniteIn(const void* x, size_t n, float scale) {
  constexpr int32_t kNonFinite = NonFinite(typename From::Math{});
  constexpr size_t kChunk = 4096;
  const auto* bytes = static_cast<const char*>(x);
  for (size_t begin = 0; begin < n; begin += kChunk) {
    const size_t count = n - begin < kChunk ? n - begin : kChunk;
    const char* chunk = bytes + begin * sizeof(typename From::Stored);
    if (LargestMagnitude<From>(chunk, count, scale) < kNonFinite) continue;
    size_t i = 0;
    while (Magnitude(scale * From::Load(chunk, i)) < kNonFinite) ++i;
    return begin + i;
  }
  return n;
}

size_t FirstNonFiniteKernel(ConstView x, float scale) {
  switch (x.dtype) {
    case DType::kFloat32:
      return FirstNonFiniteIn<Float32>(x.data, x.n, scale);
    case DType::kFloat16:
      return FirstNonFiniteIn<Float16>(x.data, x.n, scale);
    case DType::kBFloat16:
      return FirstNonFiniteIn<BFloat16>(x.data, x.n, scale);
    case DType::kFloat64:
      return FirstNonFiniteIn<Float64>(x.data, x.n, scale);
    default:
      return x.n;
  }
}

template <typename From, typename To>
void ConvertLoop(const void* HWY_RESTRICT from, size_t n, float scale, void* HWY_RESTRICT to) {
  for (size_t i = 0; i < n; ++i) To::Store(to, i, scale * From::Load(from, i));
}

template <typename From>
void ConvertFrom(ConstView from, float scale, MutableView to) {
  switch (to.dtype) {
    case DType::kFloat32:
      return ConvertLoop<From, Float32>(from.data, from.n, scale, to.data);
    case DType::kFloat16:
      return ConvertLoop<From, Float16>(from.data, from.n, scale, to.data);
    case DType::kBFloat16:
      return ConvertLoop<From, BFloat16>(from.data, from.n, scale, to.data);
    default:
      return;
  }
}

void ConvertScaledKernel(ConstView from, float scale, MutableView to) {
  switch (from.dtype) {
    case DType::kFloat32:
      return ConvertFrom<Float32>(from, scale, to);
    case DType::kFloat16:
      return ConvertFrom<Float16>(from, scale, to);
    case DType::kBFloat16:
      return ConvertFrom<BFloat16>(from, scale, to);
    case DType::kFloat64:
      return ConvertLoop<Float64, Float64>(from.data, from.n, scale, to.data);
    default:
      return;
  }
}

template <typename From, typename To>
void AddLoop(const void* HWY_RESTRICT x, size_t n, float scale, void* HWY_RESTRICT y) {
  for (size_t i = 0; i < n; ++i) To::Store(y, i, To::Load(y, i) + (scale * From::Load(x, i)));
}

void AddScaledKernel(ConstView x, float scale, MutableView y) {
  switch (x.dtype) {
    case DType::kFloat32:
      return AddLoop<Float32, Float32>(x.data, x.n, scale, y.data);
    case DType::kFloat16:
      return AddLoop<Float16, Float32>(x.data, x.n, scale, y.data);
    case DType::kBFloat16:
      return AddLoop<BFloat16, Float32>(x.data, x.n, scale, y.data);
    case DType::kFloat64:
      return AddLoop<Float64, Float64>(x.data, x.n, scale, y.data);
    default:
      return;
  }
}

// At most the largest finite float; NaN stays NaN.
HWY_INLINE float Held(float value) {
  constexpr float kLargest = 0x1.fffffep127f;
  const float below = value > kLargest ? kLargest : value;
  return below < -kLargest ? -kLargest : below;
}

// `value`, or NaN where the input is not finite: holding must not hide it.
HWY_INLINE float OrNaN(float input, float value) {
  return input - input == 0.0f ? value : std::bit_cast<float>(0x7fc00000u);
}

// Both loops of Accumulate: where p goes is what differs.
template <typename From, bool kMomentum>
HWY_INLINE float AccumulateElement(const void* g, size_t i, const FeedbackOptions& options,
                                   float residual, const float* momentum, float* new_momentum) {
  const float ag = options.scale * From::Load(g, i);
  float p = ag;
  if constexpr (kMomentum) {
    const float m = Held((options.momentum * momentum[i]) + ag);
    if (new_momentum != nullptr) new_momentum[i] = m;
    p = Held(ag + (options.momentum * m));
  }
  return OrNaN(ag, Held(p + Held(options.decay * residual)));
}

template <typename From, bool kMomentum>
void AccumulateIntoLoop(const void* HWY_RESTRICT g, size_t n, const FeedbackOptions& given,
                        const float* HWY_RESTRICT residual, const float* HWY_RESTRICT momentum,
                        float* HWY_RESTRICT to) {
  const FeedbackOptions options = given;
  for (size_t i = 0; i < n; ++i) {
    to[i] = AccumulateElement<From, kMomentum>(g, i, options, residual[i], momentum, nullptr);
  }
}

template <typename From, bool kMomentum>
void AccumulateInPlaceLoop(const void* HWY_RESTRICT g, size_t n, const FeedbackOptions& given,
                           float* HWY_RESTRICT residual, float* HWY_RESTRICT momentum) {
  const FeedbackOptions options = given;
  for (size_t i = 0; i < n; ++i) {
    residual[i] =
        AccumulateElement<From, kMomentum>(g, i, options, residual[i], momentum, momentum);
  }
}

template <typename From, bool kMomentum>
void AccumulateUndoLoop(const void* HWY_RESTRICT g, size_t n, const FeedbackOptions& given,
                        const float* HWY_RESTRICT decoded, float* HWY_RESTRICT residual,
                        float* HWY_RESTRICT momentum) {
  const FeedbackOptions options = given;
  for (size_t i = 0; i < n; ++i) {
    const float ag = options.scale * From::Load(g, i);
    float e = (residual[i] + decoded[i]) - ag;
    if constexpr (kMomentum) {
      const float m = momentum[i];
      e = e - (options.momentum * m);
      momentum[i] = (m - ag) / options.momentum;
    }
    residual[i] = e / options.decay;
  }
}

// Calls LOOP<type of g, whether there is momentum>.
#define BDN_ACCUMULATE(LOOP, ...)                                      \
  switch (g.dtype) {                                                   \
    case DType::kFloat32:                                              \
      return momentum != nullptr ? LOOP<Float32, true>(__VA_ARGS__)    \
                                 : LOOP<Float32, false>(__VA_ARGS__);  \
    case DType::kFloat16:                                              \
      return momentum != nullptr ? LOOP<Float16, true>(__VA_ARGS__)    \
                                 : LOOP<Float16, false>(__VA_ARGS__);  \
    case DType::kBFloat16:                                             \
      return momentum != nullptr ? LOOP<BFloat16, true>(__VA_ARGS__)   \
                                 : LOOP<BFloat16, false>(__VA_ARGS__); \
    default:                                                           \
      return;                                                          \
  }

void AccumulateIntoKernel(ConstView g, const FeedbackOptions& options, const float* residual,
                          const float* momentum, float* to) {
  BDN_ACCUMULATE(AccumulateIntoLoop, g.data, g.n, options, residual, momentum, to)
}
void AccumulateInPlaceKernel(ConstView g, const FeedbackOptions& options, float* residual,
                             float* momentum) {
  BDN_ACCUMULATE(AccumulateInPlaceLoop, g.data, g.n, options, residual, momentum)
}
void AccumulateUndoKernel(ConstView g, const FeedbackOptions& options, const float* decoded,
                          float* residual, float* momentum) {
  BDN_ACCUMULATE(AccumulateUndoLoop, g.data, g.n, options, decoded, residual, momentum)
}
#undef BDN_ACCUMULATE

template <typename From>
void SubtractIntoLoop(const void* HWY_RESTRICT w, size_t n, const float* HWY_RESTRICT r,
                      float* HWY_RESTRICT to) {
  for (size_t i = 0; i < n; ++i) {
    const float value = From::Load(w, i);
    to[i] = OrNaN(value, Held(value - r[i]));
  }
}

void SubtractIntoKernel(ConstView w, const float* r, float* to) {
  switch (w.dtype) {
    case DType::kFloat32:
      return SubtractIntoLoop<Float32>(w.data, w.n, r, to);
    case DType::kFloat16:
      return SubtractIntoLoop<Float16>(w.data, w.n, r, to);
    case DType::kBFloat16:
      return SubtractIntoLoop<BFloat16>(w.data, w.n, r, to);
    default:
      return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(FirstNonFiniteKernel);
HWY_EXPORT(ConvertScaledKernel);
HWY_EXPORT(AddScaledKernel);
HWY_EXPORT(AccumulateIntoKernel);
HWY_EXPORT(AccumulateInPlaceKernel);
HWY_EXPORT(AccumulateUndoKernel);
HWY_EXPORT(SubtractIntoKernel);

size_t FirstNonFinite(ConstView x, float scale) {
  return HWY_DYNAMIC_DISPATCH(FirstNonFiniteKernel)(x, scale);
}
void ConvertScaled(ConstView from, float scale, MutableView to) {
  HWY_DYNAMIC_DISPATCH(ConvertScaledKernel)(from, scale, to);
}
void AddScaled(ConstView x, float scale, MutableView y) {
  HWY_DYNAMIC_DISPATCH(AddScaledKernel)(x, scale, y);
}
void AccumulateInto(ConstView g, const FeedbackOptions& options, const float* residual,
                    const float* momentum, float* to) {
  HWY_DYNAMIC_DISPATCH(AccumulateIntoKernel)(g, options, residual, momentum, to);
}
void AccumulateInPlace(ConstView g, const FeedbackOptions& options, float* residual,
                       float* momentum) {
  HWY_DYNAMIC_DISPATCH(AccumulateInPlaceKernel)(g, options, residual, momentum);
}
void AccumulateUndo(ConstView g, const FeedbackOptions& options, const float* decoded,
                    float* residual, float* momentum) {
  HWY_DYNAMIC_DISPATCH(AccumulateUndoKernel)(g, options, decoded, residual, momentum);
}
void SubtractInto(ConstView w, const float* r, float* to) {
  HWY_DYNAMIC_DISPATCH(SubtractIntoKernel)(w, r, to);
}

}  // namespace bdn
#endif  // HWY_ONCE
