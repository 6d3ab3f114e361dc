#ifndef BANDONEON_KERNELS_BLOCK_MAGNITUDES_H_
#define BANDONEON_KERNELS_BLOCK_MAGNITUDES_H_

#include <cstddef>

namespace bdn {

// The magnitudes by which the kernels of onebit and twobit multiply: element i's is
// values[i / block]. One call handles any number of blocks. `block` is a multiple of 32, or not
// below the number of elements.
struct BlockMagnitudes {
  const float* values;
  size_t block;
};

}  // namespace bdn

#endif  // BANDONEON_KERNELS_BLOCK_MAGNITUDES_H_
