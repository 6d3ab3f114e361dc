// The sixteen virtual lanes of norm_kernels.h, which are one to four vectors, and the joining of
// these lanes. Included once for each target.

#if defined(BANDONEON_KERNELS_LANE_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BANDONEON_KERNELS_LANE_SUMS_INL_H_
#undef BANDONEON_KERNELS_LANE_SUMS_INL_H_
#else
#define BANDONEON_KERNELS_LANE_SUMS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Targets whose vectors have no fixed length use the related targets of fixed length
// (HWY_DISABLED_TARGETS, kernels/CMakeLists.txt).
using Tag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Tag>;

constexpr size_t kSumLanes = 16;
constexpr size_t kSumVectors = kSumLanes / hn::MaxLanes(Tag());
// The elements of a run: the lanes join after each run.
constexpr size_t kSumRun = 1024;

// Joins sixteen lanes into four of float64: lane l is joined with l + 8, then with l + 4.
#if HWY_TARGET != HWY_SCALAR && HWY_HAVE_FLOAT64

HWY_INLINE void JoinToFour(const Vector* HWY_RESTRICT sum, double* HWY_RESTRICT four) {
  const hn::Half<Tag> half;
  const hn::Rebind<double, decltype(half)> wide;
  constexpr size_t kWide = hn::MaxLanes(wide);
  hn::Vec<decltype(wide)> joined[2 * kSumVectors];
  for (size_t v = 0; v < kSumVectors; ++v) {
    joined[2 * v] = hn::PromoteTo(wide, hn::LowerHalf(half, sum[v]));
    joined[2 * v + 1] = hn::PromoteTo(wide, hn::UpperHalf(half, sum[v]));
  }
  for (size_t width = kSumVectors; width > 0 && width * kWide >= 4; width /= 2) {
    for (size_t v = 0; v < width; ++v) joined[v] = hn::Add(joined[v], joined[v + width]);
  }
  if constexpr (kWide == 8) {
    const hn::Half<decltype(wide)> d4;
    hn::StoreU(hn::Add(hn::LowerHalf(d4, joined[0]), hn::UpperHalf(d4, joined[0])), d4, four);
  } else {
    for (size_t l = 0; l < 4; l += kWide) hn::StoreU(joined[l / kWide], wide, four + l);
  }
}

#else

HWY_INLINE void JoinToFour(const Vector* HWY_RESTRICT sum, double* HWY_RESTRICT four) {
  HWY_ALIGN float lanes[kSumLanes];
  for (size_t v = 0; v < kSumVectors; ++v) {
    hn::StoreU(sum[v], Tag(), lanes + v * hn::MaxLanes(Tag()));
  }
  double joined[8];
  for (size_t l = 0; l < 8; ++l) joined[l] = static_cast<double>(lanes[l]) + lanes[l + 8];
  for (size_t l = 0; l < 4; ++l) four[l] = joined[l] + joined[l + 4];
}

#endif

// Joins those four into the sum: lane l is joined with l + 2, then with l + 1.
HWY_INLINE double JoinFour(const double* four) { return (four[0] + four[2]) + (four[1] + four[3]); }

// Calls visit(d, b, means) for [0, blocks), a few blocks at a time. Lane l of `means` is the sum
// that was joined to fours[4 * (b + l)] and the three after it, divided by n and rounded to
// float32.
template <class Visit>
HWY_INLINE void MeansOfFours(const double* HWY_RESTRICT fours, size_t blocks, size_t n,
                             const Visit& visit) {
  const auto divisor = static_cast<double>(n);
  size_t b = 0;
// Highway's scalar DemoteTo makes infinity finite, so that target takes the plain loop.
#if HWY_TARGET != HWY_SCALAR && HWY_HAVE_FLOAT64
  const hn::CappedTag<double, 4> wide;
  const hn::Rebind<float, decltype(wide)> d;
  const auto divisors = hn::Set(wide, divisor);
  for (; b + hn::MaxLanes(wide) <= blocks; b += hn::MaxLanes(wide)) {
    hn::Vec<decltype(wide)> lane0;
    hn::Vec<decltype(wide)> lane1;
    hn::Vec<decltype(wide)> lane2;
    hn::Vec<decltype(wide)> lane3;
    hn::LoadInterleaved4(wide, fours + 4 * b, lane0, lane1, lane2, lane3);
    const auto sums = hn::Add(hn::Add(lane0, lane2), hn::Add(lane1, lane3));
    visit(d, b, hn::DemoteTo(d, hn::Div(sums, divisors)));
  }
#endif
  const hn::CappedTag<float, 1> one;
  for (; b < blocks; ++b) {
    visit(one, b, hn::Set(one, static_cast<float>(JoinFour(fours + 4 * b) / divisor)));
  }
}

// Returns whether all elements are finite. The loop is plain, since compilers turn it into vectors.
HWY_INLINE bool AllFinite(const float* HWY_RESTRICT x, size_t n) {
  int32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7fffffff);
  }
  return largest < 0x7f800000;
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#endif
