#include "compressors/memory/delta.h"

#include "common/base/status.h"

namespace bdn {

absl::StatusOr<size_t> EncodeDelta(const Codec& codec, ConstView w, const Draw& draw,
                                   float* replica, MutableByteSpan out) {
  EncodeSource source(w, replica);
  // Codecs that read only a part of the input must not let the rest through unchecked.
  BDN_RETURN_IF_ERROR(source.CheckFinite());
  BDN_ASSIGN_OR_RETURN(const size_t used, codec.EncodeFrom(source, draw, out));
  ApplyDelta(codec, out.first(used), w.n, replica);
  return used;
}

void ApplyDelta(const Codec& codec, ByteSpan in, size_t n, float* replica) {
  codec.DecodeAdd(in, 1.0f, {replica, DType::kFloat32, n});
}

}  // namespace bdn
