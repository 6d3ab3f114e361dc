#ifndef BANDONEON_COMPRESSORS_TOPK_SELECT_H_
#define BANDONEON_COMPRESSORS_TOPK_SELECT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/dtype.h"

namespace bdn {

// Elements of an array, by rising index.
struct Selection {
  std::vector<uint32_t> index;
  std::vector<float> value;
};

// The k elements of scale * x of largest magnitude, the lower index first where magnitudes are
// equal. A guess from a sample first; where it fails, histograms of the magnitudes' bits, level by
// level. Internal to compressors/. REQUIRES: k <= x.n < 2^31, the products finite, x not float64.
Selection SelectTopK(ConstView x, float scale, size_t k);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_TOPK_SELECT_H_
