#ifndef BANDONEON_COMPRESSORS_TOPK_SELECT_H_
#define BANDONEON_COMPRESSORS_TOPK_SELECT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "compressors/encode_source.h"
#include "compressors/scratch.h"

namespace bdn {

// A list of elements of an array, by rising index. The first `size` entries are set.
struct Selection {
  Selection(size_t n, size_t k);

  ScratchArray<uint32_t> index;
  ScratchArray<float> value;
  size_t size = 0;
};

// Selects the k elements of p of largest magnitude, the lower index first where magnitudes are
// equal; with `sampled`, those that topk.h defines. It first guesses a threshold from a sample;
// where the guess fails, it counts histograms of the magnitudes' bits, level by level. Takes all of
// p where the source keeps a residual. Returns InvalidArgument where p is not finite. Internal to
// compressors/. REQUIRES: k <= source.n() < 2^31, `chosen` was made for n and k.
absl::Status SelectTopK(EncodeSource& source, size_t k, bool sampled, Selection* chosen);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_TOPK_SELECT_H_
