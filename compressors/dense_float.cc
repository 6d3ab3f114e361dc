#include "compressors/dense_float.h"

#include "common/base/status.h"
#include "compressors/kernels/float_kernels.h"
#include "compressors/payload.h"

namespace bdn {

size_t DenseFloatCodec::MaxEncodedBytes(size_t n, DType dtype) const {
  return n * DTypeSize(WireType(dtype));
}

absl::StatusOr<size_t> DenseFloatCodec::Encode(ConstView x, float scale, const Draw& /*draw*/,
                                               MutableByteSpan out) const {
  BDN_RETURN_IF_ERROR(CheckFinite(x, scale));
  ConvertScaled(x, scale, MutableView{out.data(), WireType(x.dtype), x.n});
  return MaxEncodedBytes(x.n, x.dtype);
}

size_t DenseFloatCodec::EncodeResidual(float* residual, size_t n, const Draw& /*draw*/,
                                       MutableByteSpan out) const {
  const MutableView payload{out.data(), wire_, n};
  const MutableView kept{residual, DType::kFloat32, n};
  ConvertScaled(kept, 1.0f, payload);
  AddScaled(payload, -1.0f, kept);
  return MaxEncodedBytes(n, DType::kFloat32);
}

absl::Status DenseFloatCodec::Validate(ByteSpan in, size_t n, DType dtype) const {
  BDN_RETURN_IF_ERROR(CheckSupports(*this, dtype));
  BDN_RETURN_IF_ERROR(CheckPayloadSize(*this, in.size(), MaxEncodedBytes(n, dtype), n));
  return CheckFinite(ConstView{in.data(), WireType(dtype), n}, 1.0f);
}

void DenseFloatCodec::Decode(ByteSpan in, float scale, MutableView y) const {
  ConvertScaled(ConstView{in.data(), WireType(y.dtype), y.n}, scale, y);
}

void DenseFloatCodec::DecodeAdd(ByteSpan in, float scale, MutableView y) const {
  AddScaled(ConstView{in.data(), WireType(y.dtype), y.n}, scale, y);
}

}  // namespace bdn
