#include "kernels/hadamard_kernels.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"
#include "kernels/clamp_to_finite-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kRun = 32;

using Tag = hn::CappedTag<float, 16>;
using WordTag = hn::RebindToUnsigned<Tag>;
using Vector = hn::Vec<Tag>;
constexpr size_t kLanes = hn::MaxLanes(Tag());
constexpr size_t kVectors = kRun / kLanes;  // of a run

// Returns a + b where the lane's bit kStride is 0, and a - b where it is 1. `swapped` has the two
// lanes of each pair exchanged.
template <size_t kStride>
HWY_INLINE Vector Butterfly(Vector v, Vector swapped) {
  const Tag d;
  const WordTag du;
  const auto bit = hn::And(hn::Iota(du, 0u), hn::Set(du, static_cast<uint32_t>(kStride)));
  const auto sign = hn::Mul(bit, hn::Set(du, 0x80000000u / static_cast<uint32_t>(kStride)));
  return hn::Add(swapped, hn::Xor(v, hn::BitCast(d, sign)));
}

// Transforms a run. Strides below the number of lanes work inside each vector, the others between
// vectors. compressors/integer.h pins the order of the strides, since rounding depends on it.
HWY_INLINE void TransformRun(Vector* HWY_RESTRICT run) {
  for (size_t v = 0; v < kVectors; ++v) {
    auto x = run[v];
#if HWY_TARGET != HWY_SCALAR
    x = Butterfly<1>(x, hn::Shuffle2301(x));
    x = Butterfly<2>(x, hn::Shuffle1032(x));
    if constexpr (kLanes >= 8) x = Butterfly<4>(x, hn::SwapAdjacentBlocks(x));
    if constexpr (kLanes >= 16) x = Butterfly<8>(x, hn::ConcatLowerUpper(Tag(), x, x));
#endif
    run[v] = x;
  }
  for (size_t stride = 1; stride < kVectors; stride *= 2) {
    for (size_t v = 0; v < kVectors; ++v) {
      if ((v & stride) != 0) continue;
      const auto a = run[v];
      const auto b = run[v + stride];
      run[v] = hn::Add(a, b);
      run[v + stride] = hn::Sub(a, b);
    }
  }
}

void WalshHadamardKernel(const float* from, size_t n, float factor, float* to) {
  const Tag d;
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + kRun <= n; i += kRun) {
    Vector run[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      run[v] = hn::Mul(factors, hn::LoadU(d, from + i + v * kLanes));
    }
    TransformRun(run);
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(run[v], d, to + i + v * kLanes);
  }
  if (from != to && i < n) std::memcpy(to + i, from + i, (n - i) * sizeof(float));
}

void WalshHadamardAndSubtractKernel(const float* HWY_RESTRICT c, size_t n, float* HWY_RESTRICT y) {
  const Tag d;
  size_t i = 0;
  for (; i + kRun <= n; i += kRun) {
    Vector run[kVectors];
    for (size_t v = 0; v < kVectors; ++v) run[v] = hn::LoadU(d, c + i + v * kLanes);
    TransformRun(run);
    for (size_t v = 0; v < kVectors; ++v) {
      float* const to = y + i + v * kLanes;
      const auto left = hn::Sub(hn::LoadU(d, to), run[v]);
      hn::StoreU(ClampToFinite(d, left), d, to);
    }
  }
  for (; i < n; ++i) y[i] = y[i] - c[i];
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(WalshHadamardKernel);
HWY_EXPORT(WalshHadamardAndSubtractKernel);

void WalshHadamard(const float* from, size_t n, float factor, float* to) {
  HWY_DYNAMIC_DISPATCH(WalshHadamardKernel)(from, n, factor, to);
}
void WalshHadamardAndSubtract(const float* c, size_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(WalshHadamardAndSubtractKernel)(c, n, y);
}

}  // namespace bdn
#endif  // HWY_ONCE
