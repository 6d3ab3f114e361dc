#include "kernels/row_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/row_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"

// The loops are plain, since the compiler turns them into vectors for each target. Each copies its
// factors, so that the compiler knows that no store to an array changes them, and has the greatest
// magnitude of its results beside them: to look at a row a second time costs as much as the step.
// Parentheses show what is rounded first: the build forbids contraction.

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

// The bits of an infinity; those of a magnitude that is not finite are not below.
constexpr int32_t kInfinity = 0x7f800000;

HWY_INLINE int32_t MagnitudeOf(float value) {
  return static_cast<int32_t>(std::bit_cast<uint32_t>(value) & 0x7fffffffu);
}

HWY_INLINE void Raise(float value, int32_t* most) {
  const int32_t magnitude = MagnitudeOf(value);
  *most = magnitude > *most ? magnitude : *most;
}

bool ScaleFiniteKernel(float factor, float* HWY_RESTRICT x, size_t n) {
  int32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    x[i] = factor * x[i];
    Raise(x[i], &most);
  }
  return most < kInfinity;
}

// Without a decay the gradient is the mean itself: mean + 0 * x would make +0 of -0.
template <bool kDecay>
HWY_INLINE float Gradient(const GradientStep& step, float mean, float x) {
  return kDecay ? mean + (step.decay * x) : mean;
}

template <bool kDecay>
bool SgdLoop(const GradientStep& given, const float* HWY_RESTRICT mean, size_t n,
             float* HWY_RESTRICT x) {
  const GradientStep step = given;
  int32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    x[i] = x[i] - (step.rate * Gradient<kDecay>(step, mean[i], x[i]));
    Raise(x[i], &most);
  }
  return most < kInfinity;
}

bool SgdKernel(const GradientStep& step, const float* mean, size_t n, float* x) {
  return step.decay == 0 ? SgdLoop<false>(step, mean, n, x) : SgdLoop<true>(step, mean, n, x);
}

template <bool kDecay>
bool AdagradLoop(const GradientStep& given, const float* HWY_RESTRICT mean, size_t n,
                 float* HWY_RESTRICT v, float* HWY_RESTRICT x) {
  const GradientStep step = given;
  int32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const float g = Gradient<kDecay>(step, mean[i], x[i]);
    v[i] = v[i] + (g * g);
    x[i] = x[i] - (step.rate * (g / (std::sqrt(v[i]) + step.eps)));
    Raise(v[i], &most);
    Raise(x[i], &most);
  }
  return most < kInfinity;
}

bool AdagradKernel(const GradientStep& step, const float* mean, size_t n, float* v, float* x) {
  return step.decay == 0 ? AdagradLoop<false>(step, mean, n, v, x)
                         : AdagradLoop<true>(step, mean, n, v, x);
}

template <bool kDecay>
bool RowwiseAdagradLoop(const GradientStep& given, const float* HWY_RESTRICT mean, size_t n,
                        float* HWY_RESTRICT v, float* HWY_RESTRICT x) {
  const GradientStep step = given;
  double squares = 0;
  for (size_t i = 0; i < n; ++i) {
    const double g = Gradient<kDecay>(step, mean[i], x[i]);
    squares += g * g;
  }
  v[0] += static_cast<float>(squares / static_cast<double>(n));
  const float root = std::sqrt(v[0]) + step.eps;
  int32_t most = MagnitudeOf(v[0]);
  for (size_t i = 0; i < n; ++i) {
    x[i] = x[i] - (step.rate * (Gradient<kDecay>(step, mean[i], x[i]) / root));
    Raise(x[i], &most);
  }
  return most < kInfinity;
}

bool RowwiseAdagradKernel(const GradientStep& step, const float* mean, size_t n, float* v,
                          float* x) {
  return step.decay == 0 ? RowwiseAdagradLoop<false>(step, mean, n, v, x)
                         : RowwiseAdagradLoop<true>(step, mean, n, v, x);
}

bool AdamRowKernel(const AdamRowStep& given, const float* HWY_RESTRICT mean, size_t n,
                   float* HWY_RESTRICT m, float* HWY_RESTRICT v, float* HWY_RESTRICT x) {
  const AdamRowStep step = given;
  int32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const float g = mean[i];
    m[i] = m[i] + ((g - m[i]) * step.new1);
    v[i] = v[i] + (((g * g) - v[i]) * step.new2);
    x[i] = (step.keep * x[i]) - (step.rate * (m[i] / (std::sqrt(v[i]) + step.eps)));
    Raise(m[i], &most);
    Raise(v[i], &most);
    Raise(x[i], &most);
  }
  return most < kInfinity;
}

bool FtrlKernel(const FtrlRowStep& given, const float* HWY_RESTRICT mean, size_t n,
                float* HWY_RESTRICT z, float* HWY_RESTRICT c, float* HWY_RESTRICT x) {
  const FtrlRowStep step = given;
  int32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const float g = mean[i];
    const float before = std::sqrt(c[i]);
    c[i] = c[i] + (g * g);
    const float root = std::sqrt(c[i]);
    z[i] = z[i] + (g - (((root - before) / step.alpha) * x[i]));
    const float l1 = z[i] < 0 ? -step.l1 : step.l1;
    const float moved = -(z[i] - l1) / (((step.beta + root) / step.alpha) + step.l2);
    // A mask, since compilers move the divisions behind a branch otherwise, and make no vectors.
    const uint32_t kept = std::abs(z[i]) <= step.l1 ? 0u : ~0u;
    x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(moved) & kept);
    Raise(c[i], &most);
    Raise(z[i], &most);
    Raise(x[i], &most);
  }
  return most < kInfinity;
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(ScaleFiniteKernel);
HWY_EXPORT(SgdKernel);
HWY_EXPORT(AdagradKernel);
HWY_EXPORT(RowwiseAdagradKernel);
HWY_EXPORT(AdamRowKernel);
HWY_EXPORT(FtrlKernel);

bool ScaleFinite(float factor, float* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(ScaleFiniteKernel)(factor, x, n);
}
bool StepSgdRow(const GradientStep& step, const float* mean, size_t n, float* x) {
  return HWY_DYNAMIC_DISPATCH(SgdKernel)(step, mean, n, x);
}
bool StepAdagradRow(const GradientStep& step, const float* mean, size_t n, float* v, float* x) {
  return HWY_DYNAMIC_DISPATCH(AdagradKernel)(step, mean, n, v, x);
}
bool StepRowwiseAdagradRow(const GradientStep& step, const float* mean, size_t n, float* v,
                           float* x) {
  return HWY_DYNAMIC_DISPATCH(RowwiseAdagradKernel)(step, mean, n, v, x);
}
bool StepAdamRow(const AdamRowStep& step, const float* mean, size_t n, float* m, float* v,
                 float* x) {
  return HWY_DYNAMIC_DISPATCH(AdamRowKernel)(step, mean, n, m, v, x);
}
bool StepFtrlRow(const FtrlRowStep& step, const float* mean, size_t n, float* z, float* c,
                 float* x) {
  return HWY_DYNAMIC_DISPATCH(FtrlKernel)(step, mean, n, z, c, x);
}

}  // namespace bdn
#endif  // HWY_ONCE
