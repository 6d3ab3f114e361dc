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
constexpr size_t kTogether = 4;

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

#if HWY_TARGET != HWY_SCALAR && HWY_HAVE_FLOAT64

// The upper half is added to the lower until one lane is left.
template <class D>
HWY_INLINE double JoinHalves(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return JoinHalves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

HWY_INLINE double JoinLanes(const Vector* HWY_RESTRICT sum) {
  const hn::Half<Tag> half;
  const hn::Rebind<double, decltype(half)> wide;
  hn::Vec<decltype(wide)> joined[2 * kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    joined[2 * v] = hn::PromoteTo(wide, hn::LowerHalf(half, sum[v]));
    joined[2 * v + 1] = hn::PromoteTo(wide, hn::UpperHalf(half, sum[v]));
  }
  for (size_t width = kVectors; width > 0; width /= 2) {
    for (size_t v = 0; v < width; ++v) joined[v] = hn::Add(joined[v], joined[v + width]);
  }
  return JoinHalves(wide, joined[0]);
}

#else

HWY_INLINE double JoinLanes(const Vector* HWY_RESTRICT sum) {
  HWY_ALIGN float lanes[kLanes];
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[v], Tag(), lanes + v * kVectorLanes);
  double joined[kLanes];
  for (size_t l = 0; l < kLanes; ++l) joined[l] = lanes[l];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) joined[l] += joined[l + width];
  }
  return joined[0];
}

#endif

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
  if (i < n) {
    HWY_ALIGN float lanes[kLanes];
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sum[v], d, lanes + v * kVectorLanes);
    for (size_t l = 0; i + l < n; ++l) lanes[l] += Term::Of(p[i + l]);
    for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Load(d, lanes + v * kVectorLanes);
  }
  return JoinLanes(sum);
}

// Of kTogether runs of n elements, one behind the other: their chains of additions overlap.
// REQUIRES: n is a multiple of 16, at most kRun.
template <class Term>
HWY_INLINE void SumRuns(const float* HWY_RESTRICT p, size_t n, double* HWY_RESTRICT sums) {
  const Tag d;
  Vector sum[kTogether][kVectors];
  for (size_t r = 0; r < kTogether; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (size_t i = 0; i < n; i += kLanes) {
    for (size_t r = 0; r < kTogether; ++r) {
      for (size_t v = 0; v < kVectors; ++v) {
        const auto value = hn::LoadU(d, p + r * n + i + v * kVectorLanes);
        sum[r][v] = hn::Add(sum[r][v], Term::Of(value));
      }
    }
  }
  for (size_t r = 0; r < kTogether; ++r) sums[r] = JoinLanes(sum[r]);
}

template <class Term>
HWY_INLINE double AddRuns(double total, const float* HWY_RESTRICT p, size_t n) {
  size_t i = 0;
  for (; i + kTogether * kRun <= n; i += kTogether * kRun) {
    double sums[kTogether];
    SumRuns<Term>(p + i, kRun, sums);
    for (const double sum : sums) total += sum;
  }
  for (; i < n; i += kRun) total += SumRun<Term>(p + i, std::min(kRun, n - i));
  return total;
}

double AddMagnitudesKernel(double total, const float* p, size_t n) {
  return AddRuns<MagnitudeTerm>(total, p, n);
}
double AddSquaresKernel(double total, const float* p, size_t n) {
  return AddRuns<SquareTerm>(total, p, n);
}

// Whether all means are finite.
HWY_INLINE bool StoreMeans(const double* HWY_RESTRICT sums, size_t blocks, size_t elements,
                           float* HWY_RESTRICT means) {
  const auto divisor = static_cast<double>(elements);
  for (size_t b = 0; b < blocks; ++b) means[b] = static_cast<float>(sums[b] / divisor);
  int32_t largest = 0;
  for (size_t b = 0; b < blocks; ++b) {
    largest = std::max(largest, std::bit_cast<int32_t>(means[b]) & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

// Of each block, all of them whole.
HWY_INLINE void SumBlocks(const float* HWY_RESTRICT p, size_t blocks, size_t block,
                          double* HWY_RESTRICT sums) {
  size_t b = 0;
  if (block <= kRun && block % kLanes == 0) {
    for (; b + kTogether <= blocks; b += kTogether) {
      SumRuns<MagnitudeTerm>(p + b * block, block, sums + b);
    }
  }
  for (; b < blocks; ++b) sums[b] = AddRuns<MagnitudeTerm>(0, p + b * block, block);
}

bool MeanMagnitudesKernel(const float* HWY_RESTRICT p, size_t n, size_t block,
                          float* HWY_RESTRICT means) {
  constexpr size_t kMostBlocks = 64;
  double sums[kMostBlocks];
  bool finite = true;
  const size_t whole = n / block;
  for (size_t first = 0; first < whole; first += kMostBlocks) {
    const size_t blocks = std::min(kMostBlocks, whole - first);
    SumBlocks(p + first * block, blocks, block, sums);
    finite &= StoreMeans(sums, blocks, block, means + first);
  }
  const size_t left = n - whole * block;
  if (left == 0) return finite;
  sums[0] = AddRuns<MagnitudeTerm>(0, p + whole * block, left);
  return StoreMeans(sums, 1, left, means + whole) && finite;
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
HWY_EXPORT(MeanMagnitudesKernel);
HWY_EXPORT(AddSquaresKernel);
HWY_EXPORT(LargestMagnitudeKernel);

double AddMagnitudes(double total, const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(AddMagnitudesKernel)(total, p, n);
}
bool MeanMagnitudes(const float* p, size_t n, size_t block, float* means) {
  return HWY_DYNAMIC_DISPATCH(MeanMagnitudesKernel)(p, n, block, means);
}
double AddSquares(double total, const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(AddSquaresKernel)(total, p, n);
}
float LargestMagnitude(const float* p, size_t n) {
  return HWY_DYNAMIC_DISPATCH(LargestMagnitudeKernel)(p, n);
}

}  // namespace bdn
#endif  // HWY_ONCE
