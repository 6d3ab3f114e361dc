#ifndef BANDONEON_COMPRESSORS_KERNELS_DRAWN_KERNELS_H_
#define BANDONEON_COMPRESSORS_KERNELS_DRAWN_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/base/draw.h"

namespace bdn {

// to[j] = first[j] + floor(draw.Word(word + j) * (first[j + 1] - first[j]) / 2^32) + turn, mod
// 2^32, for j < n.
void DrawInStrata(const Draw& draw, uint32_t word, const uint32_t* first, size_t n, uint32_t turn,
                  uint32_t* to);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_KERNELS_DRAWN_KERNELS_H_
