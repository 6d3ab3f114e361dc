#ifndef BANDONEON_KERNELS_DRAWN_KERNELS_H_
#define BANDONEON_KERNELS_DRAWN_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/draw.h"

namespace bdn {

// One element of each stratum [first[j], first[j + 1]), all turned by `turn`. For j < n, mod 2^32:
//
//   to[j] = first[j] + floor(draw.Word(word + j) * (first[j + 1] - first[j]) / 2^32) + turn
void DrawInStrata(const Draw& draw, uint32_t word, const uint32_t* first, size_t n, uint32_t turn,
                  uint32_t* to);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_DRAWN_KERNELS_H_
