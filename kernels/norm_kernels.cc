#include "kernels/norm_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_kernels.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = 16;
constexpr size_t kRun = 1024;

// Sixteen virtual lanes are one to four vectors. Targets whose vectors have no fixed length run on
// their fixed-length kin (HWY_DISABLED_TARGETS, kernels/CMakeLists.txt).
using Tag = hn::CappedTag<float, kLanes>;
using ITag = hn::RebindToSigned<Tag>;
using Vector = hn::Vec<Tag>;
constexpr size_t kVectorLanes = hn::MaxLanes(Tag());
constexpr size_t kVectors = kLanes / kVectorLanes;

// What is added up, of a vector and of one element.
struct MagnitudeTerm {
  static HWY_INLINE Vector Of(Vector v) { return hn::Abs(v); }
  static HWY_INLINE float Of(float value) { return std::abs(value); }
};
struct SquareTerm {
  static HWY_INLINE Vector Of(Vector v) { return hn::Mul(v, v); }
  static HWY_INLINE float Of(float value) { return value * value; }
};

HWY_INLINE double JoinLanes(const float* lanes) {
  double joined[kLanes];
  for (size_t l = 0; l < kLanes; ++l) joined[l] = lanes[l];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) joined[l] += joined[l + width];
  }
  return joined[0];
}

// One run of n <= kRun elements.
template <class Term>
HWY_INLINE double SumRun(const float* HWY_RESTRICT p, size_t n) {
  const Tag d;
  Vector sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t v = 0; v < kVectors; ++v) {
      sum[v] = hn::Add(sum[v], Term::Of(hn::LoadU(d, p + i + v * kVectorLanes)));
    }
  }
  HWY_ALIGN float lanes[kLanes];
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, lanes + v * kVectorLanes);
  for (size_t l = 0; i + l < n; ++l) lanes[l] += Term::Of(p[i + l]);
  return JoinLanes(lanes);
}

template <class Term>
HWY_INLINE double AddRuns(double total, const float* HWY_RESTRICT p, size_t n) {
  for (size_t i = 0; i < n; i += kRun) total += SumRun<Term>(p + i, std::min(kRun, n - i));
  return total;
}

double AddMagnitudesKernel(double total, const float* p, size_t n) {
  return AddRuns<MagnitudeTerm>(total, p, n);
}
double AddSquaresKernel(double total, const float* p, size_t n) {
  return AddRuns<SquareTerm>(total, p, n);
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

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(AddMagnitudesKernel);
HWY_EXPORT(AddSquaresKernel);
HWY_EXPORT(LargestMagnitudeKernel);

double AddMagnitudes(double total, const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(AddMagnitudesKernel)(total, p, n);
}
double AddSquares(double total, const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(AddSquaresKernel)(total, p, n);
}
float LargestMagnitude(const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(LargestMagnitudeKernel)(p, n);
}

}  // namespace bdn
#endif  // HWY_ONCE
