#include "compressors/codec.h"

#include <cstring>

#include "common/base/status.h"

namespace bdn {

void Codec::DecodeSum(std::span<const ByteSpan> in, float scale, MutableView y) const {
  if (y.n > 0) std::memset(y.data, 0, y.n * DTypeSize(y.dtype));
  for (const ByteSpan payload : in) DecodeAddTransformed(payload, scale, y);
  // Once for the sum: the transform is linear, and costs more than an addition.
  InverseTransform(y);
}

absl::StatusOr<size_t> Codec::AddEncoded(std::span<const ByteSpan> /*in*/, float /*scale*/,
                                         size_t /*n*/, DType /*dtype*/,
                                         MutableByteSpan /*out*/) const {
  // Callers ask linear() first, so this is our own mistake and not the payload's.
  return Internal("payloads of %s do not add up", spec());
}

}  // namespace bdn
