#include "kernels/norm_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"
#include "kernels/lane_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The runs that are summed side by side: in each, an addition waits for the one before it.
constexpr size_t kTogether = 4;

using ITag = hn::RebindToSigned<Tag>;
constexpr size_t kVectorLanes = hn::MaxLanes(Tag());

// MagnitudeTerm and SquareTerm return the term that is added up, of a vector and of one element.
struct MagnitudeTerm {
  static HWY_INLINE Vector Of(Vector v) { return hn::Abs(v); }
  static HWY_INLINE float Of(float value) { return std::abs(value); }
};
struct SquareTerm {
  static HWY_INLINE Vector Of(Vector v) { return hn::Mul(v, v); }
  static HWY_INLINE float Of(float value) { return value * value; }
};

// Returns the sum of one run of n <= kSumRun elements.
template <class Term>
HWY_INLINE double SumRun(const float* HWY_RESTRICT p, size_t n) {
  const Tag d;
  Vector sum[kSumVectors];
  for (size_t v = 0; v < kSumVectors; ++v) sum[v] = hn::Zero(d);
  size_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (size_t v = 0; v < kSumVectors; ++v) {
      sum[v] = hn::Add(sum[v], Term::Of(hn::LoadU(d, p + i + v * kVectorLanes)));
    }
  }
  if (i < n) {
    // The last elements are added to their lanes one by one, since memory past the end must not be
    // read.
    HWY_ALIGN float lanes[kSumLanes];
    for (size_t v = 0; v < kSumVectors; ++v) hn::Store(sum[v], d, lanes + v * kVectorLanes);
    for (size_t l = 0; i + l < n; ++l) lanes[l] += Term::Of(p[i + l]);
    for (size_t v = 0; v < kSumVectors; ++v) sum[v] = hn::Load(d, lanes + v * kVectorLanes);
  }
  double four[4];
  JoinToFour(sum, four);
  return JoinFour(four);
}

// Sums kTogether runs of n elements, which lie one behind the other, into four lanes each: their
// chains of additions overlap. REQUIRES: n is a multiple of 16, at most kSumRun.
template <class Term>
HWY_INLINE void SumRuns(const float* HWY_RESTRICT p, size_t n, double* HWY_RESTRICT fours) {
  const Tag d;
  Vector sum[kTogether][kSumVectors];
  for (size_t r = 0; r < kTogether; ++r) {
    for (size_t v = 0; v < kSumVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (size_t i = 0; i < n; i += kSumLanes) {
    for (size_t r = 0; r < kTogether; ++r) {
      for (size_t v = 0; v < kSumVectors; ++v) {
        const auto value = hn::LoadU(d, p + r * n + i + v * kVectorLanes);
        sum[r][v] = hn::Add(sum[r][v], Term::Of(value));
      }
    }
  }
  for (size_t r = 0; r < kTogether; ++r) JoinToFour(sum[r], fours + 4 * r);
}

template <class Term>
HWY_INLINE double AddRuns(double total, const float* HWY_RESTRICT p, size_t n) {
  size_t i = 0;
  for (; i + kTogether * kSumRun <= n; i += kTogether * kSumRun) {
    double fours[4 * kTogether];
    SumRuns<Term>(p + i, kSumRun, fours);
    for (size_t r = 0; r < kTogether; ++r) total += JoinFour(fours + 4 * r);
  }
  for (; i < n; i += kSumRun) total += SumRun<Term>(p + i, std::min(kSumRun, n - i));
  return total;
}

double AddMagnitudesKernel(double total, const float* p, size_t n) {
  return AddRuns<MagnitudeTerm>(total, p, n);
}
double AddSquaresKernel(double total, const float* p, size_t n) {
  return AddRuns<SquareTerm>(total, p, n);
}

bool MeanMagnitudesKernel(const float* HWY_RESTRICT p, size_t n, size_t block,
                          float* HWY_RESTRICT means) {
  constexpr size_t kMostBlocks = 64;
  HWY_ALIGN double fours[4 * kMostBlocks];
  const size_t whole = n / block;
  size_t b = 0;
  // Whole blocks that fit in a run are summed side by side, kTogether at a time. All others, and
  // the rest, are summed one by one.
  while (block <= kSumRun && block % kSumLanes == 0 && b + kTogether <= whole) {
    const size_t blocks = std::min(kMostBlocks, whole - b) / kTogether * kTogether;
    for (size_t r = 0; r < blocks; r += kTogether) {
      SumRuns<MagnitudeTerm>(p + (b + r) * block, block, fours + 4 * r);
    }
    MeansOfFours(fours, blocks, block, [&](auto d, size_t first, auto of_blocks) HWY_ATTR {
      hn::StoreU(of_blocks, d, means + b + first);
    });
    b += blocks;
  }
  for (; b * block < n; ++b) {
    const size_t left = std::min(block, n - b * block);
    const double sum = AddRuns<MagnitudeTerm>(0, p + b * block, left);
    means[b] = static_cast<float>(sum / static_cast<double>(left));
  }
  return AllFinite(means, b);
}

// Magnitudes compare as integers do, and NaN compares above all of them.
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
  HWY_ALIGN int32_t lanes[kSumLanes] = {};
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
