#ifndef BANDONEON_DEVICE_KERNELS_SIGN_BITS_H_
#define BANDONEON_DEVICE_KERNELS_SIGN_BITS_H_

#include <cstdint>

#include "device/kernels/elements.h"
#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/run_sums.h"
#include "device/kernels/source_elements.h"

// The kernels of onebit and sign, whose payloads compressors/onebit.h and compressors/sign.h
// define.

namespace bdn::device_kernels {

inline constexpr uint32_t kWordElements = 32;

// Returns the word that begins with element 32 t, made of a tile's flags.
BDN_DEVICE uint32_t PackWord(const uint8_t* flags, uint32_t t, uint32_t count) {
  uint32_t word = 0;
  for (uint32_t j = 0; j < kWordElements && t * kWordElements + j < count; ++j) {
    word |= static_cast<uint32_t>(flags[t * kWordElements + j]) << j;
  }
  return word;
}
BDN_DEVICE bool BitAt(const uint32_t* words, uint32_t i) {
  return (words[i / kWordElements] >> i % kWordElements & 1u) != 0;
}

// The scales at a payload's front, one for each block of elements.
struct BlockScales {
  void* scales;
  bool bfloat;  // bfloat16, an even number of them; else float32
  uint32_t block;

  BDN_DEVICE void Store(uint32_t b, float scale) const {
    if (bfloat) {
      static_cast<uint16_t*>(scales)[b] = NarrowToBFloat16(scale);
    } else {
      static_cast<float*>(scales)[b] = scale;
    }
  }
  // Returns the scale of element i.
  BDN_DEVICE float Of(uint32_t i) const {
    const uint32_t b = i / block;
    return bfloat ? WidenBFloat16(static_cast<const uint16_t*>(scales)[b])
                  : static_cast<const float*>(scales)[b];
  }
};

// A kernel that writes the scales and their padding. A scale is factor * the mean magnitude, at
// most `most`, from the sums that SumRuns left with the factors 1 and 2^-8. One block for each
// kTile scales; one thread for each scale.
struct ScaleBlocks {
  static constexpr KernelId kId = KernelId::kScaleBlocks;
  static constexpr int kPhases = 1;
  static constexpr float kLargeFactor = 0x1p-8f;
  struct Arguments {
    RunLayout layout;
    const double* sums;
    BlockScales scales;
    float factor;
    float most;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const uint32_t num_runs = a.layout.NumRuns();
    const uint32_t num_blocks = a.layout.NumBlocks();
    const uint32_t end = Least(num_blocks, (at.block + 1) * kTile);
    for (uint32_t b = at.block * kTile + at.thread; b < end; b += at.threads) {
      const uint32_t from = b * a.layout.RunsOfBlock();
      const uint32_t to = Least(num_runs, from + a.layout.RunsOfBlock());
      double sum = AddRuns(a.sums, from, to);
      if (!IsFinite(sum)) sum = 0x1p8 * AddRuns(a.sums + num_runs, from, to);
      const uint32_t count = a.layout.BlockEnd(b) - b * a.layout.block;
      const double mean = sum / static_cast<double>(count);
      const auto finite = static_cast<float>(Least(mean, static_cast<double>(0x1.fffffep127f)));
      a.scales.Store(b, Least(a.factor * finite, a.most));
      if (a.scales.bfloat && b % 2 == 0 && b + 1 == num_blocks) a.scales.Store(num_blocks, 0.0f);
    }
  }
};

// A kernel that writes the signs of onebit, and updates the residual or replica. One pass; one
// block for each tile.
struct EncodeOneBit {
  static constexpr KernelId kId = KernelId::kEncodeOneBit;
  static constexpr int kPhases = 2;
  struct Arguments {
    Source source;
    BlockScales scales;
    uint32_t* words;
    EncodeResult* result;
  };
  struct Shared {
    uint8_t negative[kTile];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (!AllFinite(a.result)) return;
    const uint32_t begin = at.block * kTile;
    const uint32_t count = Least(a.source.n - begin, kTile);
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < count; j += at.threads) {
        const float p = Take(a.source, begin + j);
        const bool negative = p < 0.0f;
        shared.negative[j] = negative ? 1 : 0;
        if (!HasMemory(a.source)) continue;
        const float scale = a.scales.Of(begin + j);
        Leave(a.source, begin + j, p, negative ? -scale : scale);
      }
    } else {
      for (uint32_t t = at.thread; t < RoundUpDivide(count, kWordElements); t += at.threads) {
        a.words[begin / kWordElements + t] = PackWord(shared.negative, t, count);
      }
    }
  }
};

// A kernel that decodes onebit. One pass; one block for each tile.
struct DecodeOneBit {
  static constexpr KernelId kId = KernelId::kDecodeOneBit;
  static constexpr int kPhases = 1;
  struct Arguments {
    BlockScales scales;
    const uint32_t* words;
    Target target;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.target.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      const float scale = a.scales.Of(i);
      Deliver(a.target, i, BitAt(a.words, i) ? -scale : scale);
    }
  }
};

// A kernel that writes both bitmaps of sign and whether there are zeros, and updates the residual
// or replica. One pass; one block for each tile. REQUIRES: the payload's first word is 0.
struct EncodeSign {
  static constexpr KernelId kId = KernelId::kEncodeSign;
  static constexpr int kPhases = 2;
  struct Arguments {
    Source source;
    uint32_t* payload;
    EncodeResult* result;
  };
  struct Shared {
    uint8_t negative[kTile];
    uint8_t zero[kTile];
  };

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& shared) {
    if (HasMemory(a.source) && !AllFinite(a.result)) return;
    const uint32_t begin = at.block * kTile;
    const uint32_t count = Least(a.source.n - begin, kTile);
    if constexpr (kPhase == 0) {
      for (uint32_t j = at.thread; j < count; j += at.threads) {
        const float p = Take(a.source, begin + j);
        if (!IsFinite(p)) NoteNonFinite(a.source, begin + j, a.result);
        shared.negative[j] = p < 0.0f ? 1 : 0;
        shared.zero[j] = p == 0.0f ? 1 : 0;
        Leave(a.source, begin + j, p, p == 0.0f ? 0.0f : (p < 0.0f ? -1.0f : 1.0f));
      }
    } else {
      uint32_t* const negative = a.payload + 1 + begin / kWordElements;
      uint32_t* const zero = negative + RoundUpDivide(a.source.n, kWordElements);
      for (uint32_t t = at.thread; t < RoundUpDivide(count, kWordElements); t += at.threads) {
        negative[t] = PackWord(shared.negative, t, count);
        zero[t] = PackWord(shared.zero, t, count);
        if (zero[t] != 0) AtomicOr(a.payload, 1u);
      }
    }
  }
};

// A kernel that sets the size of the payload that EncodeSign left. One block.
struct EndSign {
  static constexpr KernelId kId = KernelId::kEndSign;
  static constexpr int kPhases = 1;
  struct Arguments {
    const uint32_t* payload;
    uint32_t n;
    EncodeResult* result;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    if (at.thread != 0) return;
    const uint64_t words = RoundUpDivide(a.n, kWordElements);
    a.result->used_bytes = 4 + 4 * (a.payload[0] == 1 ? 2 * words : words);
  }
};

// A kernel that decodes sign. One pass; one block for each tile.
struct DecodeSign {
  static constexpr KernelId kId = KernelId::kDecodeSign;
  static constexpr int kPhases = 1;
  struct Arguments {
    const uint32_t* payload;
    Target target;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const bool zeros = a.payload[0] == 1;
    const uint32_t* const negative = a.payload + 1;
    const uint32_t* const zero = negative + RoundUpDivide(a.target.n, kWordElements);
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.target.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      const bool is_zero = zeros && BitAt(zero, i);
      Deliver(a.target, i, is_zero ? 0.0f : (BitAt(negative, i) ? -1.0f : 1.0f));
    }
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_SIGN_BITS_H_
