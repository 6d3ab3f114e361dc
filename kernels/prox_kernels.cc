#include "kernels/prox_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/prox_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"

// The loops are plain, since the compiler turns them into vectors for each target. Parentheses show
// what is rounded first: the build forbids contraction.

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

// Comparisons with selects, which the compiler can turn into vectors. One of two zeros comes back
// with its sign; ProxLoop leaves none.
HWY_INLINE double Least(double a, double b) { return a < b ? a : b; }
HWY_INLINE double Most(double a, double b) { return a > b ? a : b; }

// The smallest v of least lambda * v + pull / 2 * (v - u)^2.
HWY_INLINE double Shrunk(const ProxStep& step, double u) {
  return Most(0.0, u - (step.lambda / step.pull));
}

// Every penalty below is a row of pieces. The minimum of the sum on a piece is at one candidate, so
// the least of all is at a candidate. They rise, and only a smaller value replaces an earlier
// candidate: of equal ones the smallest stays.
//
// A piece that bends down more than the square bends up (kBends false) has its minimum at an end,
// which belongs to a neighbouring piece, too; so it needs no candidate.

struct L1 {
  static HWY_INLINE double Best(const ProxStep& step, double u) { return Shrunk(step, u); }
};

// The value of a candidate, from the penalty there.
HWY_INLINE double Value(const ProxStep& step, double u, double v, double penalty) {
  return penalty + (((0.5 * step.pull) * (v - u)) * (v - u));
}

// [0, lambda]: lambda v. [lambda, theta lambda]: (2 theta lambda v - v^2 - lambda^2) / (2 (theta -
// 1)). Above: lambda^2 (theta + 1) / 2.
template <bool kBends>
struct Scad {
  static HWY_INLINE double Best(const ProxStep& step, double u) {
    const double l = step.lambda;
    const double flat = step.theta * l;
    double best = Least(l, Shrunk(step, u));
    double least = Value(step, u, best, l * best);
    if constexpr (kBends) {
      const double bend = step.pull * (step.theta - 1);
      const double inside = ((bend * u) - flat) / (bend - 1);
      const double v = Least(flat, Most(l, inside));
      const double penalty = (((2 * flat) * v) - (v * v) - (l * l)) / (2 * (step.theta - 1));
      const double value = Value(step, u, v, penalty);
      best = value < least ? v : best;
      least = value < least ? value : least;
    }
    const double v = Most(flat, u);
    const double value = Value(step, u, v, ((l * l) * (step.theta + 1)) * 0.5);
    return value < least ? v : best;
  }
};

// [0, theta lambda]: lambda v - v^2 / (2 theta). Above: theta lambda^2 / 2.
template <bool kBends>
struct Mcp {
  static HWY_INLINE double Best(const ProxStep& step, double u) {
    const double l = step.lambda;
    const double flat = step.theta * l;
    double best = 0;
    double least = Value(step, u, 0, 0);
    if constexpr (kBends) {
      const double inside = ((step.pull * u) - l) / (step.pull - (1 / step.theta));
      const double v = Least(flat, Most(0.0, inside));
      const double value = Value(step, u, v, (l * v) - ((v * v) / (2 * step.theta)));
      best = value < least ? v : best;
      least = value < least ? value : least;
    }
    const double v = Most(flat, u);
    const double value = Value(step, u, v, (flat * l) * 0.5);
    return value < least ? v : best;
  }
};

// [0, theta]: lambda v. Above: lambda theta.
struct Capped {
  static HWY_INLINE double Best(const ProxStep& step, double u) {
    const double below = Least(step.theta, Shrunk(step, u));
    const double above = Most(step.theta, u);
    const double value_below = Value(step, u, below, step.lambda * below);
    const double value_above = Value(step, u, above, step.lambda * step.theta);
    return value_above < value_below ? above : below;
  }
};

template <typename Penalty>
void ProxLoop(const ProxStep& given, const float* HWY_RESTRICT sum, size_t n,
              float* HWY_RESTRICT x) {
  const ProxStep step = given;
  for (size_t i = 0; i < n; ++i) {
    const double m = static_cast<double>(x[i]) - (step.scale * static_cast<double>(sum[i]));
    const double v = Penalty::Best(step, m < 0 ? -m : m);
    // Sums with 0, which are +0 where v is a zero of either sign, or rounds to 0.
    const auto rounded = static_cast<float>(v);
    x[i] = m < 0 ? 0 - rounded : 0 + rounded;
  }
}

// The branches are outside the loops, which are compiled for each case.
void ProxKernel(const ProxStep& step, const float* sum, size_t n, float* x) {
  switch (step.penalty) {
    case ProxPenalty::kL1:
      return ProxLoop<L1>(step, sum, n, x);
    case ProxPenalty::kScad:
      return step.pull * (step.theta - 1) > 1 ? ProxLoop<Scad<true>>(step, sum, n, x)
                                              : ProxLoop<Scad<false>>(step, sum, n, x);
    case ProxPenalty::kMcp:
      return step.pull - (1 / step.theta) > 0 ? ProxLoop<Mcp<true>>(step, sum, n, x)
                                              : ProxLoop<Mcp<false>>(step, sum, n, x);
    case ProxPenalty::kCapped:
      return ProxLoop<Capped>(step, sum, n, x);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(ProxKernel);

void StepProx(const ProxStep& step, const float* sum, size_t n, float* x) {
  HWY_DYNAMIC_DISPATCH(ProxKernel)(step, sum, n, x);
}

}  // namespace bdn
#endif  // HWY_ONCE
