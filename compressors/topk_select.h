#ifndef BANDONEON_COMPRESSORS_TOPK_SELECT_H_
#define BANDONEON_COMPRESSORS_TOPK_SELECT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "compressors/encode_source.h"

namespace bdn {

// Elements of an array, by rising index.
struct Selection {
  std::vector<uint32_t> index;
  std::vector<float> value;
};

// The k elements of p of largest magnitude, the lower index first where magnitudes are equal. A
// guess from a sample first; where it fails, histograms of the magnitudes' bits, level by level.
// Takes all of p where the source keeps a residual. Internal to compressors/.
// REQUIRES: k <= source.n() < 2^31, p finite.
Selection SelectTopK(EncodeSource& source, size_t k);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_TOPK_SELECT_H_
