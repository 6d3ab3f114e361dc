#ifndef BANDONEON_DEVICE_KERNELS_TWOBIT_LEVELS_H_
#define BANDONEON_DEVICE_KERNELS_TWOBIT_LEVELS_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/sign_bits.h"
#include "device/kernels/source_elements.h"

// The kernels of twobit, whose levels and payload compressors/twobit.h defines. Its scales are
// those of onebit, with another factor.

namespace bdn::device_kernels {

// A kernel that writes both bitmaps, and updates the residual or replica. One pass; one block for
// each tile.
struct EncodeTwoBit {
  static constexpr KernelId kId = KernelId::kEncodeTwoBit;
  static constexpr int kPhases = 2;
  struct Arguments {
    Source source;
    BlockScales scales;
    uint32_t* words;
    EncodeResult* result;
  };
  struct Shared {
    uint8_t negative[kTile];
    uint8_t large[kTile];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (!AllFinite(a.result)) return;
    const uint32_t begin = at.block * kTile;
    const uint32_t count = Least(a.source.n - begin, kTile);
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < count; j += at.threads) {
        const float p = Take(a.source, begin + j);
        const float scale = a.scales.Of(begin + j);
        const bool negative = p < 0.0f;
        const bool large = FloatOf(MagnitudeBits(p)) > 2.0f * scale;
        shared.negative[j] = negative ? 1 : 0;
        shared.large[j] = large ? 1 : 0;
        const float level = large ? 3.0f * scale : scale;
        Leave(a.source, begin + j, p, negative ? -level : level);
      }
    } else {
      uint32_t* const negative = a.words + begin / kWordElements;
      uint32_t* const large = negative + RoundUpDivide(a.source.n, kWordElements);
      for (uint32_t t = at.thread; t < RoundUpDivide(count, kWordElements); t += at.threads) {
        negative[t] = PackWord(shared.negative, t, count);
        large[t] = PackWord(shared.large, t, count);
      }
    }
  }
};

// A kernel that decodes. One pass; one block for each tile.
struct DecodeTwoBit {
  static constexpr KernelId kId = KernelId::kDecodeTwoBit;
  static constexpr int kPhases = 1;
  struct Arguments {
    BlockScales scales;
    const uint32_t* words;
    Target target;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const uint32_t* const large = a.words + RoundUpDivide(a.target.n, kWordElements);
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.target.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      const float scale = a.scales.Of(i);
      const float level = BitAt(large, i) ? 3.0f * scale : scale;
      Deliver(a.target, i, BitAt(a.words, i) ? -level : level);
    }
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_TWOBIT_LEVELS_H_
