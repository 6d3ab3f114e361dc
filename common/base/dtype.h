#ifndef BANDONEON_COMMON_BASE_DTYPE_H_
#define BANDONEON_COMMON_BASE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace bdn {

// An element type. The values are on the wire and in the C API: never renumber.
enum class DType : uint8_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kFloat64 = 3,
  kUInt8 = 4,
  kInt8 = 5,
  kInt16 = 6,
  kInt32 = 7,
  kInt64 = 8,
  kBool = 9,
};
inline constexpr int kNumDTypes = 10;

// Returns the bytes of one element.
size_t DTypeSize(DType dtype);
const char* DTypeName(DType dtype);
// Returns whether values of the type can be averaged: kFloat32, kFloat16, kBFloat16, kFloat64.
bool IsFloating(DType dtype);
// Returns InvalidArgument when `value` is no DType.
absl::StatusOr<DType> DTypeFromNumber(int value);

// Convert one element between float and IEEE half or bfloat16: to nearest even, subnormals kept. A
// finite value beyond the largest finite half or bfloat16 saturates to it; NaN and infinity stay
// what they are. The loops are in kernels/.
uint16_t FloatToHalf(float value);
float HalfToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float value);
float BFloat16ToFloat(uint16_t bits);

// A view of a flat array of n elements that somebody else owns, in host memory except where its
// user says otherwise (PushRequest::device).
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  size_t n = 0;

  const float* f32() const { return static_cast<const float*>(data); }
  // Returns `count` elements from `offset`. REQUIRES: offset + count <= n.
  ConstView Sub(size_t offset, size_t count) const {
    return {static_cast<const char*>(data) + offset * DTypeSize(dtype), dtype, count};
  }
};

// A view as ConstView, through which the elements may be written.
struct MutableView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  size_t n = 0;

  float* f32() const { return static_cast<float*>(data); }
  operator ConstView() const { return {data, dtype, n}; }
  MutableView Sub(size_t offset, size_t count) const {
    return {static_cast<char*>(data) + offset * DTypeSize(dtype), dtype, count};
  }
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_DTYPE_H_
