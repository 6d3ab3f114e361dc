#include "kernels/accumulate_kernels.h"

#include <bit>
#include <cstdint>

#include "kernels/clamp_to_finite.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/accumulate_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"
#include "kernels/float_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

// Returns `value`, or NaN where the input is not finite, which clamping must not hide.
HWY_INLINE float OrNaN(float input, float value) {
  return input - input == 0.0f ? value : std::bit_cast<float>(0x7fc00000u);
}

// Does the header's arithmetic, an element at a time. `to` may be `residual`. `new_momentum` may be
// `momentum`, and is null where it is not wanted.
template <typename From, bool kMomentum>
HWY_INLINE void AccumulatePlain(const void* g, size_t begin, size_t end,
                                const FeedbackOptions& options, const float* residual,
                                const float* momentum, float* to, float* new_momentum) {
  for (size_t i = begin; i < end; ++i) {
    const float ag = options.scale * From::Load(g, i);
    float p = ag;
    if constexpr (kMomentum) {
      const float m = ClampToFinite((options.momentum * momentum[i]) + ag);
      if (new_momentum != nullptr) new_momentum[i] = m;
      p = ClampToFinite(ag + (options.momentum * m));
    }
    to[i] = OrNaN(ag, ClampToFinite(p + ClampToFinite(options.decay * residual[i])));
  }
}

// Does the same by vectors, without clamping. A value that overflows on the way makes p infinite or
// NaN, so a step whose p are all finite needed no clamping. Any other step is done again plainly.
template <typename From, bool kMomentum>
void AccumulateLoop(const void* g, size_t n, const FeedbackOptions& given, const float* residual,
                    const float* momentum, float* to, float* new_momentum) {
  // A local copy, so that the compiler knows that no store to an array changes it.
  const FeedbackOptions options = given;
  const auto plain = [&](size_t begin, size_t end) HWY_ATTR {
    AccumulatePlain<From, kMomentum>(g, begin, end, options, residual, momentum, to, new_momentum);
  };
  size_t i = 0;
  if constexpr (kHasVectors<From>) {
    const Tag d;
    const auto scale = hn::Set(d, options.scale);
    const auto decay = hn::Set(d, options.decay);
    [[maybe_unused]] const auto mu = hn::Set(d, options.momentum);
    for (; i + kStep <= n; i += kStep) {
      Vector p[kStepVectors];
      [[maybe_unused]] Vector m[kStepVectors];
      for (size_t v = 0; v < kStepVectors; ++v) {
        const size_t at = i + v * kLanes;
        const auto ag = hn::Mul(scale, LoadVector<From>(g, at));
        p[v] = ag;
        if constexpr (kMomentum) {
          m[v] = hn::Add(hn::Mul(mu, hn::LoadU(d, momentum + at)), ag);
          p[v] = hn::Add(ag, hn::Mul(mu, m[v]));
        }
        p[v] = hn::Add(p[v], hn::Mul(decay, hn::LoadU(d, residual + at)));
      }
      // Nothing of this step is stored yet, so the residual and the momentum are still there to do
      // it again.
      if (HWY_UNLIKELY(!AllMagnitudesBelow(p, kNonFinite))) {
        plain(i, i + kStep);
        continue;
      }
      for (size_t v = 0; v < kStepVectors; ++v) hn::StoreU(p[v], d, to + i + v * kLanes);
      if constexpr (kMomentum) {
        if (new_momentum == nullptr) continue;
        for (size_t v = 0; v < kStepVectors; ++v) {
          hn::StoreU(m[v], d, new_momentum + i + v * kLanes);
        }
      }
    }
  }
  plain(i, n);
}

template <typename From>
void AccumulateFrom(ConstView g, const FeedbackOptions& options, const float* residual,
                    const float* momentum, float* to, float* new_momentum) {
  momentum != nullptr
      ? AccumulateLoop<From, true>(g.data, g.n, options, residual, momentum, to, new_momentum)
      : AccumulateLoop<From, false>(g.data, g.n, options, residual, momentum, to, new_momentum);
}

void AccumulateKernel(ConstView g, const FeedbackOptions& options, const float* residual,
                      const float* momentum, float* to, float* new_momentum) {
  WithElements(g.dtype, [&](auto from) {
    AccumulateFrom<decltype(from)>(g, options, residual, momentum, to, new_momentum);
  });
}

// Does the arithmetic of AccumulateUndo. Only the results are clamped: an intermediate value that
// overflows ends in an infinity of its sign, never in a NaN.
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
      momentum[i] = ClampToFinite((m - ag) / options.momentum);
    }
    residual[i] = ClampToFinite(e / options.decay);
  }
}

template <typename From>
void AccumulateUndoFrom(ConstView g, const FeedbackOptions& options, const float* decoded,
                        float* residual, float* momentum) {
  momentum != nullptr
      ? AccumulateUndoLoop<From, true>(g.data, g.n, options, decoded, residual, momentum)
      : AccumulateUndoLoop<From, false>(g.data, g.n, options, decoded, residual, momentum);
}

void AccumulateUndoKernel(ConstView g, const FeedbackOptions& options, const float* decoded,
                          float* residual, float* momentum) {
  WithElements(g.dtype, [&](auto from) {
    AccumulateUndoFrom<decltype(from)>(g, options, decoded, residual, momentum);
  });
}

template <typename From>
void SubtractIntoLoop(const void* HWY_RESTRICT w, size_t n, const float* HWY_RESTRICT r,
                      float* HWY_RESTRICT to) {
  for (size_t i = 0; i < n; ++i) {
    const float value = From::Load(w, i);
    to[i] = OrNaN(value, ClampToFinite(value - r[i]));
  }
}

void SubtractIntoKernel(ConstView w, const float* r, float* to) {
  WithElements(w.dtype, [&](auto from) { SubtractIntoLoop<decltype(from)>(w.data, w.n, r, to); });
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(AccumulateKernel);
HWY_EXPORT(AccumulateUndoKernel);
HWY_EXPORT(SubtractIntoKernel);

void AccumulateInto(ConstView g, const FeedbackOptions& options, const float* residual,
                    const float* momentum, float* to) {
  HWY_DYNAMIC_DISPATCH(AccumulateKernel)(g, options, residual, momentum, to, nullptr);
}
void AccumulateInPlace(ConstView g, const FeedbackOptions& options, float* residual,
                       float* momentum) {
  HWY_DYNAMIC_DISPATCH(AccumulateKernel)(g, options, residual, momentum, residual, momentum);
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
