#ifndef BANDONEON_KERNELS_DRAWN_KERNELS_H_
#define BANDONEON_KERNELS_DRAWN_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/draw.h"

namespace bdn {

// Draws one element of each stratum [first[j], first[j + 1]), and turns all of them by `turn`. For
// j < n, modulo 2^32:
//
//   to[j] = first[j] + floor(draw.Word(word + j) * (first[j + 1] - first[j]) / 2^32) + turn
void DrawInStrata(const Draw& draw, uint32_t word, const uint32_t* first, size_t n, uint32_t turn,
                  uint32_t* to);

}  // namespace bdn

#endif  // BANDONEON_KERNELS_DRAWN_KERNELS_H_
