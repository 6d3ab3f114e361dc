// ClampToFinite (kernels/clamp_to_finite.h) for a vector. Included once for each target.

#if defined(BANDONEON_KERNELS_CLAMP_TO_FINITE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BANDONEON_KERNELS_CLAMP_TO_FINITE_INL_H_
#undef BANDONEON_KERNELS_CLAMP_TO_FINITE_INL_H_
#else
#define BANDONEON_KERNELS_CLAMP_TO_FINITE_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

// Returns v with infinite lanes replaced by the largest finite float of their sign. REQUIRES: no
// lane is NaN.
template <class D>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> ClampToFinite(D d, hwy::HWY_NAMESPACE::Vec<D> v) {
  namespace hn = hwy::HWY_NAMESPACE;
  const auto largest = hn::Set(d, 0x1.fffffep127f);
  return hn::Max(hn::Min(v, largest), hn::Neg(largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#endif
