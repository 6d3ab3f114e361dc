#ifndef BANDONEON_DEVICE_KERNELS_FEEDBACK_STEPS_H_
#define BANDONEON_DEVICE_KERNELS_FEEDBACK_STEPS_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/source_elements.h"

// The kernels that mend a residual after its payload never counted:
// compressors/memory/error_feedback.h.

namespace bdn::device_kernels {

// A kernel that does Undo: AccumulateUndo of kernels/accumulate_kernels.h. One pass; one block for
// each tile.
struct UndoStep {
  static constexpr KernelId kId = KernelId::kUndoStep;
  static constexpr int kPhases = 1;
  struct Arguments {
    Source source;
    const float* decoded;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const Source& source = a.source;
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(source.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      const float input = Input(source, i);
      float e = (source.memory[i] + a.decoded[i]) - input;
      if (source.momentum != nullptr) {
        const float m = source.momentum[i];
        e = e - (source.momentum_factor * m);
        source.momentum[i] = ClampToFinite((m - input) / source.momentum_factor);
      }
      source.memory[i] = ClampToFinite(e / source.decay);
    }
  }
};

// A kernel that does Owe: it adds the values that were sent to the residual. One pass; one block
// for each tile.
struct OweDecoded {
  static constexpr KernelId kId = KernelId::kOweDecoded;
  static constexpr int kPhases = 1;
  struct Arguments {
    const float* decoded;
    float* residual;
    uint32_t n;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      a.residual[i] = ClampToFinite(a.residual[i] + a.decoded[i]);
    }
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_FEEDBACK_STEPS_H_
