#include "kernels/update_kernels.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/update_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"

// The loops are plain, since the compiler turns them into vectors for each target. Each copies its
// factors, so that the compiler knows that no store to an array changes them.
// Parentheses show what is rounded first: the build forbids contraction.

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

template <bool kMomentum, bool kNesterov>
void MomentumLoop(const MomentumStep& given, const float* HWY_RESTRICT sum, size_t n,
                  float* HWY_RESTRICT m, float* HWY_RESTRICT x) {
  const MomentumStep step = given;
  for (size_t i = 0; i < n; ++i) {
    float g = (step.scale * sum[i]) + (step.decay * x[i]);
    if constexpr (kMomentum) {
      m[i] = (step.momentum * m[i]) + g;
      g = kNesterov ? g + (step.momentum * m[i]) : m[i];
    }
    x[i] = x[i] - (step.rate * g);
  }
}

// The branches are outside the loops, which are compiled for each case.
void MomentumKernel(const MomentumStep& step, const float* sum, size_t n, float* m, float* x) {
  if (m == nullptr) return MomentumLoop<false, false>(step, sum, n, m, x);
  step.nesterov ? MomentumLoop<true, true>(step, sum, n, m, x)
                : MomentumLoop<true, false>(step, sum, n, m, x);
}

void AdamKernel(const AdamStep& given, const float* HWY_RESTRICT sum, size_t n,
                float* HWY_RESTRICT m, float* HWY_RESTRICT v, float* HWY_RESTRICT x) {
  const AdamStep step = given;
  for (size_t i = 0; i < n; ++i) {
    const float g = step.scale * sum[i];
    m[i] = m[i] + (step.new1 * (g - m[i]));
    v[i] = (step.old2 * v[i]) + (step.new2 * (g * g));
    x[i] = (step.keep * x[i]) - (step.rate * (m[i] / ((std::sqrt(v[i]) / step.root) + step.eps)));
  }
}

void SignMomentumKernel(const SignMomentumStep& given, size_t n, float* HWY_RESTRICT sum,
                        float* HWY_RESTRICT m, float* HWY_RESTRICT x) {
  const SignMomentumStep step = given;
  for (size_t i = 0; i < n; ++i) {
    const float d = step.scale * sum[i];
    const float u = (step.beta1 * m[i]) + (step.new1 * d);
    m[i] = (step.beta2 * m[i]) + (step.new2 * d);
    // This is sign(u) without a branch.
    sum[i] = static_cast<float>(u > 0) - static_cast<float>(u < 0);
    x[i] = (step.signs.keep * x[i]) - (step.signs.rate * sum[i]);
  }
}

void SignsKernel(const SignStep& given, const float* HWY_RESTRICT signs, size_t n,
                 float* HWY_RESTRICT x) {
  const SignStep step = given;
  for (size_t i = 0; i < n; ++i) x[i] = (step.keep * x[i]) - (step.rate * signs[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(MomentumKernel);
HWY_EXPORT(AdamKernel);
HWY_EXPORT(SignMomentumKernel);
HWY_EXPORT(SignsKernel);

void StepWithMomentum(const MomentumStep& step, const float* sum, size_t n, float* m, float* x) {
  HWY_DYNAMIC_DISPATCH(MomentumKernel)(step, sum, n, m, x);
}
void StepAdam(const AdamStep& step, const float* sum, size_t n, float* m, float* v, float* x) {
  HWY_DYNAMIC_DISPATCH(AdamKernel)(step, sum, n, m, v, x);
}
void StepSignMomentum(const SignMomentumStep& step, size_t n, float* sum, float* m, float* x) {
  HWY_DYNAMIC_DISPATCH(SignMomentumKernel)(step, n, sum, m, x);
}
void ApplySigns(const SignStep& step, const float* signs, size_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(SignsKernel)(step, signs, n, x);
}

}  // namespace bdn
#endif  // HWY_ONCE
