#ifndef BANDONEON_KERNELS_FEEDBACK_BLOCKS_H_
#define BANDONEON_KERNELS_FEEDBACK_BLOCKS_H_

#include <cstddef>

#include "kernels/accumulate_kernels.h"

namespace bdn {

// A step of error feedback without momentum, of float32, in blocks that have a scale each. The
// kernels of onebit and twobit do it in one pass over memory. To the bit it is AccumulateInPlace,
// MeanMagnitudes and a kernel that packs and subtracts, one after the other:
//
//   p = a * g[i] + rho * residual[i]
//   scale of a block = min(factor * the mean of |p|, most), as bfloat16 to nearest even and finite
//   residual[i] <- p - the value that its code and the scale decode to
//
// The kernels return how many elements they did, whole blocks from the first on. They have changed
// nothing of the other elements but, perhaps, their scales. They do all whole blocks where `block`
// is a multiple of 64 and at most 1,024, else none; but they stop within 1,024 elements before a
// block in which p or its sum overflows. REQUIRES: every a * g[i] is finite.
struct FeedbackBlocks {
  const float* g;
  size_t n;  // elements of g and residual
  FeedbackOptions options;
  float* residual;
  size_t block;  // elements
  float factor;
  float most;
  bool bfloat;   // scales are bfloat16, else float32
  void* scales;  // one a block; needs no alignment
};

}  // namespace bdn

#endif  // BANDONEON_KERNELS_FEEDBACK_BLOCKS_H_
