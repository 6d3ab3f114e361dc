#include "common/base/dtype.h"

#include <bit>
#include <cmath>

#include "common/base/status.h"

namespace bdn {
namespace {

struct DTypeFacts {
  const char* name;
  size_t size;
  bool floating;
};

constexpr DTypeFacts kFacts[kNumDTypes] = {
    {"float32", 4, true}, {"float16", 2, true}, {"bfloat16", 2, true}, {"float64", 8, true},
    {"uint8", 1, false},  {"int8", 1, false},   {"int16", 2, false},   {"int32", 4, false},
    {"int64", 8, false},  {"bool", 1, false},
};

const DTypeFacts& Facts(DType dtype) { return kFacts[static_cast<int>(dtype)]; }

}  // namespace

size_t DTypeSize(DType dtype) { return Facts(dtype).size; }
const char* DTypeName(DType dtype) { return Facts(dtype).name; }
bool IsFloating(DType dtype) { return Facts(dtype).floating; }

absl::StatusOr<DType> DTypeFromNumber(int value) {
  if (value < 0 || value >= kNumDTypes) return InvalidArgument("unknown element type %d", value);
  return static_cast<DType>(value);
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;  // NaN
  if (magnitude == 0x7f800000u) return sign | 0x7c00u;
  if (magnitude >= 0x477fe000u) return sign | 0x7bffu;  // saturates at 65504
  if (magnitude < 0x33000001u) return sign;  // at most half of the least subnormal: rounds to zero
  const uint32_t exponent = magnitude >> 23;
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  // The number of bits to drop: 13 for a normal half, more as the half gets subnormal.
  const uint32_t shift = exponent >= 113 ? 13 : 126 - exponent;
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  const uint32_t half_way = 1u << (shift - 1);
  const uint32_t rounded = kept + ((rest > half_way || (rest == half_way && (kept & 1))) ? 1 : 0);
  // `rounded` holds the implicit bit of a normal half, which adds one to the exponent field.
  const uint32_t result = exponent >= 113 ? ((exponent - 113) << 10) + rounded : rounded;
  return sign | static_cast<uint16_t>(result);
}

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24, exact in float32 and never subnormal there.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN
  if (magnitude < 0x7f800000u && magnitude > 0x7f7f0000u) return sign | 0x7f7fu;    // saturates
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

}  // namespace bdn
