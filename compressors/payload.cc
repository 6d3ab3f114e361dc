#include "compressors/payload.h"

#include <cmath>
#include <cstring>

#include "common/base/status.h"
#include "kernels/float_kernels.h"

namespace bdn {
namespace {

// Returns scale * x[0], computed as the kernels compute it: in float32, or in float64 for float64.
double ElementTimes(ConstView x, float scale) {
  if (x.dtype == DType::kFloat64) {
    double value;
    std::memcpy(&value, x.data, sizeof(value));
    return scale * value;
  }
  float product = 0;
  ConvertScaled(x, scale, MutableView{&product, DType::kFloat32, 1});
  return product;
}

}  // namespace

absl::Status NonFiniteElement(size_t i, double value) {
  return InvalidArgument("element %d is %s", i, std::isnan(value) ? "nan" : "infinite");
}

absl::Status CheckFinite(ConstView x, float scale) {
  const size_t i = FirstNonFinite(x, scale);
  if (i == x.n) return absl::OkStatus();
  return NonFiniteElement(i, ElementTimes(x.Sub(i, 1), scale));
}

absl::Status CheckPayloadSize(const Codec& codec, size_t got, size_t expected, size_t n) {
  if (got == expected) return absl::OkStatus();
  return InvalidArgument("%s payload of %d elements has %d bytes, expected %d", codec.spec(), n,
                         got, expected);
}

absl::Status CheckSupports(const Codec& codec, DType dtype) {
  if (codec.Supports(dtype)) return absl::OkStatus();
  return InvalidArgument("%s does not take %s", codec.spec(), DTypeName(dtype));
}

}  // namespace bdn
