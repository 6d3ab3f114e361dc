#ifndef BANDONEON_DEVICE_KERNELS_ELEMENTS_H_
#define BANDONEON_DEVICE_KERNELS_ELEMENTS_H_

#include <cstdint>

#include "device/kernels/portable.h"

// The reading and writing of elements of each floating type. Values are rounded to nearest even,
// subnormals are kept, halves are at most 65504, and bfloat16 is at most its largest finite number
// (common/base/dtype.h).

namespace bdn::device_kernels {

// The type of an element, with the numbers of DType.
enum class ElementType : uint32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

BDN_DEVICE float WidenHalf(uint32_t half) {
  const uint32_t shifted = (half & 0x7fffu) << 13;
  const uint32_t sign = (half & 0x8000u) << 16;
  if (shifted >= (31u << 23)) return FloatOf((shifted + (224u << 23)) | sign);
  // This is exact: a subnormal's mantissa with the exponent of 2^-14 and its implicit bit, less
  // that bit.
  const uint32_t subnormal = BitsOf(FloatOf(shifted + (113u << 23)) - 0x1p-14f);
  return FloatOf((shifted < (1u << 23) ? subnormal : shifted + (112u << 23)) | sign);
}

BDN_DEVICE uint16_t NarrowToHalf(float value) {
  const uint32_t magnitude = MagnitudeBits(value);
  const uint32_t sign = BitsOf(value) >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(0x7e00u | sign);
  if (magnitude == 0x7f800000u) return static_cast<uint16_t>(0x7c00u | sign);
  const uint32_t finite = Least(magnitude, 0x477fe000u);  // 65504
  const uint32_t normal = (finite - (112u << 23) + 0xfffu + (finite >> 13 & 1u)) >> 13;
  // The last bit of the sum is worth 2^-24, the least subnormal half, so the addition rounds to it.
  const uint32_t subnormal = BitsOf(FloatOf(finite) + 0.5f) - BitsOf(0.5f);
  return static_cast<uint16_t>((finite < 0x38800000u ? subnormal : normal) | sign);
}

BDN_DEVICE float WidenBFloat16(uint32_t half) { return FloatOf(half << 16); }

BDN_DEVICE uint16_t NarrowToBFloat16(float value) {
  const uint32_t magnitude = MagnitudeBits(value);
  const uint32_t sign = BitsOf(value) >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(magnitude >> 16 | 0x40u | sign);
  if (magnitude == 0x7f800000u) return static_cast<uint16_t>(0x7f80u | sign);
  const uint32_t finite = Least(magnitude, 0x7f7f0000u);
  return static_cast<uint16_t>((finite + 0x7fffu + (finite >> 16 & 1u)) >> 16 | sign);
}

BDN_DEVICE float LoadElement(ElementType type, const void* base, uint32_t i) {
  if (type == ElementType::kFloat32) return static_cast<const float*>(base)[i];
  const uint32_t half = static_cast<const uint16_t*>(base)[i];
  return type == ElementType::kFloat16 ? WidenHalf(half) : WidenBFloat16(half);
}

BDN_DEVICE void StoreElement(ElementType type, void* base, uint32_t i, float value) {
  if (type == ElementType::kFloat32) {
    static_cast<float*>(base)[i] = value;
  } else {
    static_cast<uint16_t*>(base)[i] =
        type == ElementType::kFloat16 ? NarrowToHalf(value) : NarrowToBFloat16(value);
  }
}

}  // namespace bdn::device_kernels

#endif  // BANDONEON_DEVICE_KERNELS_ELEMENTS_H_
