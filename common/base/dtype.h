#ifndef BANDONEON_COMMON_BASE_DTYPE_H_
#define BANDONEON_COMMON_BASE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace bdn {

// The values are on the wire and in the C API: never renumber.
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

// Bytes an element.
size_t DTypeSize(DType dtype);
const char* DTypeName(DType dtype);
// kFloat32, kFloat16, kBFloat16, kFloat64: what can be averaged.
bool IsFloating(DType dtype);
// InvalidArgument when `value` is no DType.
absl::StatusOr<DType> DTypeFromNumber(int value);

// IEEE half and bfloat16 from float, to nearest even, subnormals kept. Half saturates to the
// largest finite half; NaN and infinity stay what they are. One element; the loops are in
// kernels/.
uint16_t FloatToHalf(float value);
float HalfToFloat(uint16_t bits);
uint16_t FloatToBFloat16(float value);
float BFloat16ToFloat(uint16_t bits);

// A flat array of n elements that somebody else owns, in memory of the host but where its user says
// otherwise (PushRequest::device).
struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;
  size_t n = 0;

  const float* f32() const { return static_cast<const float*>(data); }
  // REQUIRES: offset + count <= n.
  ConstView Sub(size_t offset, size_t count) const {
    return {static_cast<const char*>(data) + offset * DTypeSize(dtype), dtype, count};
  }
};

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
