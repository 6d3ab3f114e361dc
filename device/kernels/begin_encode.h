#ifndef BANDONEON_DEVICE_KERNELS_BEGIN_ENCODE_H_
#define BANDONEON_DEVICE_KERNELS_BEGIN_ENCODE_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/source_elements.h"

// The kernels that come before an encoding.

namespace bdn::device_kernels {

// A kernel that sets up the result, and sets `zeros` words from `words` on to 0. One block for each
// kTile words, at least one.
struct BeginEncode {
  static constexpr KernelId kId = KernelId::kBeginEncode;
  static constexpr int kPhases = 1;
  struct Arguments {
    EncodeResult* result;
    uint64_t used_bytes;
    uint32_t* words;
    uint32_t zeros;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    if (at.block == 0 && at.thread == 0) *a.result = {a.used_bytes, EncodeResult::kAllFinite};
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.zeros, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) a.words[i] = 0;
  }
};

// A kernel that notes the first element of the input that is not finite. One block for each tile.
struct CheckInput {
  static constexpr KernelId kId = KernelId::kCheckInput;
  static constexpr int kPhases = 1;
  struct Arguments {
    Source source;
    EncodeResult* result;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.source.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      if (!IsFinite(Input(a.source, i))) NoteNonFinite(a.source, i, a.result);
    }
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_BEGIN_ENCODE_H_
