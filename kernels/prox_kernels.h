#ifndef BANDONEON_KERNELS_PROX_KERNELS_H_
#define BANDONEON_KERNELS_PROX_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace bdn {

// The penalties whose proximal operators StepProx takes, as server/rules/prox_rule.h has them.
enum class ProxPenalty : uint8_t { kL1, kScad, kMcp, kCapped };

// The factors of a proximal step:
//
//   m = x - scale * sum
//   x <- sign(m) * the v >= 0 of least p(v) + pull / 2 * (v - |m|)^2
//
// lambda >= 0, theta > 0 (above 1 for kScad), pull > 0.
struct ProxStep {
  ProxPenalty penalty = ProxPenalty::kL1;
  double scale = 1;
  double lambda = 0;
  double theta = 1;
  double pull = 1;
};

// Takes the step on float32[n] arrays, which do not overlap. Each element goes through the same
// operations of float64, each rounded, on every target, and is rounded to float32 at the end: the
// values of two candidates may differ by less than float32 can tell. A v of 0 gives +0.
void StepProx(const ProxStep& step, const float* sum, size_t n, float* x);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_PROX_KERNELS_H_
