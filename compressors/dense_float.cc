#include "compressors/dense_float.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "compressors/payload.h"
#include "kernels/float_kernels.h"

namespace bdn {

size_t DenseFloatCodec::MaxEncodedBytes(size_t n, DType dtype) const {
  return n * DTypeSize(WireType(dtype));
}

absl::StatusOr<size_t> DenseFloatCodec::EncodeFrom(EncodeSource& source, const Draw& /*draw*/,
                                                   MutableByteSpan out) const {
  const MutableView payload{out.data(), WireType(source.dtype()), source.n()};
  // Nothing may fail after the first Take, so all of the input is checked first. The check ends at
  // the end of the array: going backward begins with tiles that are still in the cache.
  if (source.keeps_residual()) {
    BDN_RETURN_IF_ERROR(source.CheckFinite());
    ForEachTileBackward(0, source.n(), [&](size_t at, size_t count) {
      ConvertAndSubtract(source.Take(at, count), payload.Sub(at, count));
    });
    return MaxEncodedBytes(source.n(), source.dtype());
  }
  // The kernel converts and checks in one pass, but does not say which element is bad; that is
  // searched only where there is one.
  if (source.is_scaled_input()) {
    if (!ConvertFinite(source.scaled_input(), source.scale(), payload)) return source.CheckFinite();
    return MaxEncodedBytes(source.n(), source.dtype());
  }
  bool finite = true;
  ForEachTile(0, source.n(), [&](size_t at, size_t count) {
    const ConstView p{source.Peek(at, count), DType::kFloat32, count};
    finite = finite && ConvertFinite(p, 1.0f, payload.Sub(at, count));
  });
  if (!finite) return source.CheckFinite();
  return MaxEncodedBytes(source.n(), source.dtype());
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

void DenseFloatCodec::DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const {
  SumByTiles(in, y, [&](ByteSpan payload, size_t at, MutableView tile) {
    AddScaled(ConstView{payload.data(), WireType(y.dtype), y.n}.Sub(at, tile.n), scale, tile);
  });
}

absl::StatusOr<size_t> DenseFloatCodec::AddEncoded(std::span<const ByteSpan> in, float scale,
                                                   size_t n, DType dtype,
                                                   MutableByteSpan out) const {
  const DType wire = WireType(dtype);
  const MutableView payload{out.data(), wire, n};
  // The sum of a tile stays in the cache until all payloads are added. The scale comes last, once.
  alignas(64) std::byte tile[kTile * sizeof(double)];
  for (size_t at = 0; at < n; at += kTile) {
    const MutableView sum{tile, wire, std::min(kTile, n - at)};
    std::memset(tile, 0, sum.n * DTypeSize(wire));
    for (const ByteSpan x : in) AddScaled(ConstView{x.data(), wire, n}.Sub(at, sum.n), 1.0f, sum);
    if (ConvertFinite(sum, scale, payload.Sub(at, sum.n))) continue;
    // CheckFinite counts from the beginning of the tile, so the message says where that is.
    const absl::Status status = CheckFinite(sum, scale);
    return Annotate(status, absl::StrFormat("sum from element %d on", at));
  }
  return MaxEncodedBytes(n, dtype);
}

}  // namespace bdn
