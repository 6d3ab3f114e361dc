#include "common/base/float_guard.h"

#include <cfenv>

#include "gtest/gtest.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace bdn {
namespace {

// Computed when the test runs, not when it is compiled.
float HalfOf(float value) {
  volatile float computed = value;
  return computed / 2;
}
float Third() {
  volatile float one = 1.0f;
  volatile float three = 3.0f;
  return one / three;
}

TEST(FloatGuard, RoundsToNearestAndGivesTheCallersModeBack) {
  const float nearest = Third();
  std::fesetround(FE_DOWNWARD);
  const float down = Third();
  float guarded = 0;
  {
    const FloatGuard guard;
    guarded = Third();
  }
  const int mode = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(guarded, nearest);
  EXPECT_NE(down, nearest);
  EXPECT_EQ(mode, FE_DOWNWARD);
}

#if defined(__x86_64__)
TEST(FloatGuard, KeepsSubnormalsAndGivesTheCallersStateBack) {
  constexpr float kSubnormal = 0x1p-130f;
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040);
  const float flushed = HalfOf(kSubnormal);
  float guarded = 0;
  {
    const FloatGuard outer;
    const FloatGuard inner;
    guarded = HalfOf(kSubnormal);
  }
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(flushed, 0.0f);
  EXPECT_EQ(guarded, 0x1p-131f);
  EXPECT_EQ(after & 0x8040u, 0x8040u);
}
#endif

}  // namespace
}  // namespace bdn
