#ifndef BANDONEON_KERNELS_CLAMP_TO_FINITE_H_
#define BANDONEON_KERNELS_CLAMP_TO_FINITE_H_

namespace bdn {

// Returns v, or the largest finite float of its sign where v is infinite. NaN stays NaN. This is
// the clamp of the codecs' formulas.
constexpr float ClampToFinite(float v) {
  constexpr float kLargest = 0x1.fffffep127f;
  const float below = v > kLargest ? kLargest : v;
  return below < -kLargest ? -kLargest : below;
}

}  // namespace bdn

#endif  // BANDONEON_KERNELS_CLAMP_TO_FINITE_H_
