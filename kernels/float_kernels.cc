#include "kernels/float_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/float_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/float_elements-inl.h"

// A loop of this file is plain where every compiler that we use turns it into vectors of the
// target.

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

// Magnitude(value) is at least NonFinite(value) exactly where the value is NaN or infinite.
HWY_INLINE int32_t Magnitude(float value) {
  return static_cast<int32_t>(BitsOf(value) & 0x7fffffffu);
}
HWY_INLINE int32_t Magnitude(double value) {
  return static_cast<int32_t>(std::bit_cast<uint64_t>(value) >> 32 & 0x7fffffffu);
}
HWY_INLINE constexpr int32_t NonFinite(float) { return kNonFinite; }
HWY_INLINE constexpr int32_t NonFinite(double) { return 0x7ff00000; }

// Returns the first of x[begin, n) whose product is not finite, or n.
template <typename From>
HWY_INLINE size_t FirstNonFinitePlain(const void* x, size_t begin, size_t n,
                                      typename From::Math scale) {
  size_t i = begin;
  while (i < n && std::isfinite(scale * From::Load(x, i))) ++i;
  return i;
}

template <typename From>
size_t FirstNonFiniteIn(const void* x, size_t n, float scale) {
  size_t i = 0;
  if constexpr (kHasVectors<From>) {
    const auto factor = hn::Set(Tag(), scale);
    for (; i + kStep <= n; i += kStep) {
      Vector step[kStepVectors];
      for (size_t v = 0; v < kStepVectors; ++v) {
        step[v] = hn::Mul(factor, LoadVector<From>(x, i + v * kLanes));
      }
      // The bad element is in this step: the plain loop below finds it.
      if (HWY_UNLIKELY(!AllMagnitudesBelow(step, kNonFinite))) break;
    }
    return FirstNonFinitePlain<From>(x, i, n, scale);
  }
  // Plain loops become vectors where they do not stop in the middle, so the test comes once for
  // each chunk.
  constexpr size_t kChunk = 4096;
  for (; i < n; i += kChunk) {
    const size_t end = n - i < kChunk ? n : i + kChunk;
    int32_t largest = 0;
    for (size_t j = i; j < end; ++j) {
      largest = std::max(largest, Magnitude(scale * From::Load(x, j)));
    }
    if (largest >= NonFinite(typename From::Math{}))
      return FirstNonFinitePlain<From>(x, i, end, scale);
  }
  return n;
}

size_t FirstNonFiniteKernel(ConstView x, float scale) {
  return WithAnyElements(
      x.dtype, [&](auto from) { return FirstNonFiniteIn<decltype(from)>(x.data, x.n, scale); });
}

// Narrowing converts vectors of float32 to and from the stored type. Narrow takes magnitudes below
// kLimit; a step with others takes the plain loop.
template <typename To>
struct Narrowing;

template <>
struct Narrowing<Float32> {
  using StoredTag = Tag;
  static constexpr int32_t kLimit = kNonFinite;
  static HWY_INLINE Vector Narrow(Vector v) { return v; }
  static HWY_INLINE Vector Widen(Vector v) { return v; }
};

#if BDN_HAS_HALF_CONVERSIONS

template <>
struct Narrowing<Float16> {
  using StoredTag = hn::Rebind<hwy::float16_t, Tag>;
  static constexpr int32_t kLimit = kNonFinite;
  static HWY_INLINE hn::Vec<StoredTag> Narrow(Vector v) {
    const auto largest = hn::Set(Tag(), 65504.0f);
    return hn::DemoteTo(StoredTag(), hn::Max(hn::Min(v, largest), hn::Neg(largest)));
  }
  static HWY_INLINE Vector Widen(hn::Vec<StoredTag> half) { return hn::PromoteTo(Tag(), half); }
};

template <>
struct Narrowing<BFloat16> {
  using StoredTag = hn::Rebind<uint16_t, Tag>;
  // From this magnitude on the nearest finite bfloat16 is the largest one, and rounding would give
  // infinity.
  static constexpr int32_t kLimit = 0x7f7f8000;
  static HWY_INLINE hn::Vec<StoredTag> Narrow(Vector v) {
    const UTag du;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
    return hn::TruncateTo(StoredTag(), hn::ShiftRight<16>(rounded));
  }
  static HWY_INLINE Vector Widen(hn::Vec<StoredTag> half) {
    return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(UTag(), half)));
  }
};

#endif  // BDN_HAS_HALF_CONVERSIONS

template <typename To>
HWY_INLINE void StoreNarrowed(hn::Vec<typename Narrowing<To>::StoredTag> stored, void* to,
                              size_t i) {
#if HWY_TARGET == HWY_SCALAR
  StoreAt(to, i, hn::GetLane(stored));
#else
  const hn::Repartition<uint8_t, typename Narrowing<To>::StoredTag> d8;
  hn::StoreU(hn::BitCast(d8, stored), d8,
             static_cast<uint8_t*>(to) + i * sizeof(typename To::Stored));
#endif
}

// Converts [begin, end), and returns whether all products were finite.
template <typename From, typename To>
HWY_INLINE bool ConvertPlain(const void* HWY_RESTRICT from, size_t begin, size_t end,
                             typename From::Math scale, void* HWY_RESTRICT to) {
  int32_t largest = 0;
  for (size_t i = begin; i < end; ++i) {
    const auto value = scale * From::Load(from, i);
    To::Store(to, i, value);
    largest = std::max(largest, Magnitude(value));
  }
  return largest < NonFinite(typename From::Math{});
}

template <typename From, typename To>
bool ConvertLoop(const void* HWY_RESTRICT from, size_t n, float scale, void* HWY_RESTRICT to) {
  bool finite = true;
  size_t i = 0;
  if constexpr (kHasVectors<From> && kHasVectors<To>) {
    const auto factor = hn::Set(Tag(), scale);
    for (; i + kStep <= n; i += kStep) {
      Vector step[kStepVectors];
      for (size_t v = 0; v < kStepVectors; ++v) {
        step[v] = hn::Mul(factor, LoadVector<From>(from, i + v * kLanes));
      }
      if (HWY_UNLIKELY(!AllMagnitudesBelow(step, Narrowing<To>::kLimit))) {
        finite &= ConvertPlain<From, To>(from, i, i + kStep, scale, to);
        continue;
      }
      for (size_t v = 0; v < kStepVectors; ++v) {
        StoreNarrowed<To>(Narrowing<To>::Narrow(step[v]), to, i + v * kLanes);
      }
    }
  }
  return ConvertPlain<From, To>(from, i, n, scale, to) && finite;
}

bool ConvertKernel(ConstView from, float scale, MutableView to) {
  if (from.dtype == DType::kFloat64) {
    return ConvertLoop<Float64, Float64>(from.data, from.n, scale, to.data);
  }
  return WithElements(from.dtype, [&](auto f) {
    return WithElements(to.dtype, [&](auto t) {
      return ConvertLoop<decltype(f), decltype(t)>(from.data, from.n, scale, to.data);
    });
  });
}

template <typename To>
void ConvertAndSubtractLoop(float* HWY_RESTRICT p, size_t n, void* HWY_RESTRICT to) {
  const auto plain = [&](size_t begin, size_t end) HWY_ATTR {
    for (size_t i = begin; i < end; ++i) {
      To::Store(to, i, p[i]);
      p[i] = p[i] - To::Load(to, i);
    }
  };
  size_t i = 0;
  if constexpr (kHasVectors<To>) {
    const Tag d;
    for (; i + kStep <= n; i += kStep) {
      Vector step[kStepVectors];
      for (size_t v = 0; v < kStepVectors; ++v) step[v] = hn::LoadU(d, p + i + v * kLanes);
      if (HWY_UNLIKELY(!AllMagnitudesBelow(step, Narrowing<To>::kLimit))) {
        plain(i, i + kStep);
        continue;
      }
      for (size_t v = 0; v < kStepVectors; ++v) {
        const size_t at = i + v * kLanes;
        const auto half = Narrowing<To>::Narrow(step[v]);
        StoreNarrowed<To>(half, to, at);
        hn::StoreU(hn::Sub(step[v], Narrowing<To>::Widen(half)), d, p + at);
      }
    }
  }
  plain(i, n);
}

void ConvertAndSubtractKernel(float* p, MutableView to) {
  WithElements(to.dtype, [&](auto t) { ConvertAndSubtractLoop<decltype(t)>(p, to.n, to.data); });
}

template <typename From, typename To>
void AddLoop(const void* HWY_RESTRICT x, size_t n, float scale, void* HWY_RESTRICT y) {
  size_t i = 0;
  if constexpr (kHasVectors<From>) {
    const Tag d;
    const auto factor = hn::Set(d, scale);
    auto* const sum = static_cast<float*>(y);
    for (; i + kLanes <= n; i += kLanes) {
      const auto product = hn::Mul(factor, LoadVector<From>(x, i));
      hn::StoreU(hn::Add(hn::LoadU(d, sum + i), product), d, sum + i);
    }
  }
  for (; i < n; ++i) To::Store(y, i, To::Load(y, i) + (scale * From::Load(x, i)));
}

void AddScaledKernel(ConstView x, float scale, MutableView y) {
  if (x.dtype == DType::kFloat64) {
    return AddLoop<Float64, Float64>(x.data, x.n, scale, y.data);
  }
  WithElements(x.dtype,
               [&](auto from) { AddLoop<decltype(from), Float32>(x.data, x.n, scale, y.data); });
}

void SumScaledKernel(std::span<const ScaledFloats> x, float* HWY_RESTRICT y, size_t n) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Tag d;
  // The sums of a step stay in registers until all arrays are added, so that y is written once.
  for (; i + kStep <= n; i += kStep) {
    Vector sum[kStepVectors];
    const auto first = hn::Set(d, x[0].scale);
    for (size_t v = 0; v < kStepVectors; ++v) {
      sum[v] = hn::Mul(first, hn::LoadU(d, x[0].data + i + v * kLanes));
    }
    for (size_t k = 1; k < x.size(); ++k) {
      const auto factor = hn::Set(d, x[k].scale);
      for (size_t v = 0; v < kStepVectors; ++v) {
        sum[v] = hn::Add(sum[v], hn::Mul(factor, hn::LoadU(d, x[k].data + i + v * kLanes)));
      }
    }
    for (size_t v = 0; v < kStepVectors; ++v) hn::StoreU(sum[v], d, y + i + v * kLanes);
  }
#endif
  // The last elements go through the same operations in the same order, and so have the same bits.
  for (; i < n; ++i) {
    float sum = x[0].scale * x[0].data[i];
    for (size_t k = 1; k < x.size(); ++k) sum = sum + (x[k].scale * x[k].data[i]);
    y[i] = sum;
  }
}

void StreamScaledKernel(const float* HWY_RESTRICT from, float scale, float* HWY_RESTRICT to,
                        size_t n) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const Tag d;
  constexpr size_t kVectorBytes = kLanes * sizeof(float);
  // Streaming stores need aligned vectors, so the elements before the first aligned one are stored
  // plainly.
  for (; i < n && reinterpret_cast<uintptr_t>(to + i) % kVectorBytes != 0; ++i) {
    to[i] = scale * from[i];
  }
  const auto factor = hn::Set(d, scale);
  for (; i + kLanes <= n; i += kLanes) {
    hn::Stream(hn::Mul(factor, hn::LoadU(d, from + i)), d, to + i);
  }
  // Streamed stores are not ordered with other stores. This makes them visible before the caller
  // can publish the array.
  hwy::FlushStream();
#endif
  for (; i < n; ++i) to[i] = scale * from[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(FirstNonFiniteKernel);
HWY_EXPORT(ConvertKernel);
HWY_EXPORT(ConvertAndSubtractKernel);
HWY_EXPORT(AddScaledKernel);
HWY_EXPORT(SumScaledKernel);
HWY_EXPORT(StreamScaledKernel);

size_t FirstNonFinite(ConstView x, float scale) {
  return HWY_DYNAMIC_DISPATCH(FirstNonFiniteKernel)(x, scale);
}
void ConvertScaled(ConstView from, float scale, MutableView to) {
  HWY_DYNAMIC_DISPATCH(ConvertKernel)(from, scale, to);
}
bool ConvertFinite(ConstView from, float scale, MutableView to) {
  return HWY_DYNAMIC_DISPATCH(ConvertKernel)(from, scale, to);
}
void ConvertAndSubtract(float* p, MutableView to) {
  HWY_DYNAMIC_DISPATCH(ConvertAndSubtractKernel)(p, to);
}
void AddScaled(ConstView x, float scale, MutableView y) {
  HWY_DYNAMIC_DISPATCH(AddScaledKernel)(x, scale, y);
}
void SumScaled(std::span<const ScaledFloats> x, float* y, size_t n) {
  HWY_DYNAMIC_DISPATCH(SumScaledKernel)(x, y, n);
}
void StreamScaled(const float* from, float scale, float* to, size_t n) {
  HWY_DYNAMIC_DISPATCH(StreamScaledKernel)(from, scale, to, n);
}

}  // namespace bdn
#endif  // HWY_ONCE
