#ifndef BANDONEON_DEVICE_KERNELS_DRAW_WORDS_H_
#define BANDONEON_DEVICE_KERNELS_DRAW_WORDS_H_

#include <cstdint>

#include "device/kernels/portable.h"

namespace bdn::device_kernels {

// The generator of a draw's numbers (common/base/draw.h), made of the draw's keys.
struct DrawKeys {
  uint32_t k0;
  uint32_t k1;

  BDN_DEVICE uint32_t Word(uint32_t j) const {
    uint32_t x = j * 0x9E3779B9u + k0;
    x ^= x >> 16;
    x *= 0x21F0AAADu;
    x ^= x >> 15;
    x += k1;
    x *= 0x735A2D97u;
    x ^= x >> 15;
    return x;
  }
  BDN_DEVICE uint32_t Bits16(uint32_t i) const { return Word(i / 2) >> (16 * (i & 1)) & 0xffffu; }
};

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_DRAW_WORDS_H_
