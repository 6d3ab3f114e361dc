#ifndef BANDONEON_DEVICE_KERNELS_FLOAT_CODES_H_
#define BANDONEON_DEVICE_KERNELS_FLOAT_CODES_H_

#include <cstdint>

#include "device/kernels/kernel_id.h"
#include "device/kernels/portable.h"
#include "device/kernels/source_elements.h"

// The kernels of none, fp16 and bf16, which send every element, in order, as one floating type. One
// block for each tile.

namespace bdn::device_kernels {

// A kernel that encodes. One pass. Where CheckInput found something, a residual or replica is left
// as it was.
struct EncodeFloats {
  static constexpr KernelId kId = KernelId::kEncodeFloats;
  static constexpr int kPhases = 1;
  struct Arguments {
    Source source;
    void* payload;
    ElementType wire;
    EncodeResult* result;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    if (HasMemory(a.source) && !AllFinite(a.result)) return;
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.source.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      const float p = Take(a.source, i);
      if (!IsFinite(p)) NoteNonFinite(a.source, i, a.result);
      StoreElement(a.wire, a.payload, i, p);
      if (HasMemory(a.source)) Leave(a.source, i, p, LoadElement(a.wire, a.payload, i));
    }
  }
};

// A kernel that decodes. One pass.
struct DecodeFloats {
  static constexpr KernelId kId = KernelId::kDecodeFloats;
  static constexpr int kPhases = 1;
  struct Arguments {
    const void* payload;
    ElementType wire;
    Target target;
  };
  struct Shared {};

  template <int kPhase>
  BDN_DEVICE static void Run(const Thread& at, const Arguments& a, Shared& /*shared*/) {
    const uint32_t begin = at.block * kTile;
    const uint32_t end = Least(a.target.n, begin + kTile);
    for (uint32_t i = begin + at.thread; i < end; i += at.threads) {
      Deliver(a.target, i, LoadElement(a.wire, a.payload, i));
    }
  }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_FLOAT_CODES_H_
