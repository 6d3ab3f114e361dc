#include "kernels/drawn_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/drawn_kernels.cc"
#include "hwy/foreach_target.h"
// The include above compiles this file once for each instruction set. It comes before all others of
// Highway, which a comment between them keeps so when they are sorted.
#include "hwy/highway.h"

// The loop is plain, since compilers turn it into vectors of the target.

HWY_BEFORE_NAMESPACE();
namespace bdn {
namespace HWY_NAMESPACE {

void DrawInStrataKernel(const Draw& given, uint32_t word, const uint32_t* HWY_RESTRICT first,
                        size_t n, uint32_t turn, uint32_t* HWY_RESTRICT to) {
  // A local copy, so that the compiler knows that no store changes it.
  const Draw draw = given;
  for (size_t j = 0; j < n; ++j) {
    const uint64_t drawn = draw.Word(word + static_cast<uint32_t>(j));
    const uint64_t length = first[j + 1] - first[j];
    to[j] = first[j] + static_cast<uint32_t>(drawn * length >> 32) + turn;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace bdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bdn {

HWY_EXPORT(DrawInStrataKernel);

void DrawInStrata(const Draw& draw, uint32_t word, const uint32_t* first, size_t n, uint32_t turn,
                  uint32_t* to) {
  HWY_DYNAMIC_DISPATCH(DrawInStrataKernel)(draw, word, first, n, turn, to);
}

}  // namespace bdn
#endif  // HWY_ONCE
