#ifndef BANDONEON_KERNELS_BLOCK_MAGNITUDES_H_
#define BANDONEON_KERNELS_BLOCK_MAGNITUDES_H_

#include <cstddef>

namespace bdn {

// What the kernels of onebit and twobit multiply by: of element i it is values[i / block]. One call
// takes as many blocks as there are. `block` is a multiple of 32, or not below the number of
// elements.
struct BlockMagnitudes {
  const float* values;
  size_t block;
};

}  // namespace bdn

#endif  // BANDONEON_KERNELS_BLOCK_MAGNITUDES_H_
