#ifndef BANDONEON_COMPRESSORS_MEMORY_DELTA_H_
#define BANDONEON_COMPRESSORS_MEMORY_DELTA_H_

#include "absl/status/statusor.h"
#include "compressors/codec.h"

// Delta coding, for a link that carries values which change little from step to step, such as
// weights (quantized weight differences of SDP4Bit, arXiv 2410.15526, section 4.2; EF21,
// 2106.05203, is the same for gradients):
//
//   sender:     send Q(w - r);   r <- r + decode(Q(w - r))
//   receiver:                    r <- r + decode(payload)
//
// Both ends hold the same replica r, bit for bit. A difference w - r that overflows becomes the
// largest finite float32 of its sign. The codec's error stays in w - r and is sent again in the
// next step, so no residual is kept.

namespace bdn {

// Encodes w - replica, and advances `replica`, float32[w.n]; returns the bytes used. Returns
// InvalidArgument where an element of w is not finite; then the replica is unchanged. REQUIRES:
// codec.Supports(w.dtype), `replica` is finite, out.size() >= codec.MaxEncodedBytes(w.n, w.dtype).
absl::StatusOr<size_t> EncodeDelta(const Codec& codec, ConstView w, const Draw& draw,
                                   float* replica, MutableByteSpan out);

// Does the receiver's half: adds the decoded payload to `replica`. REQUIRES: codec.Validate(in, n,
// ...) is OK.
void ApplyDelta(const Codec& codec, ByteSpan in, size_t n, float* replica);

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_MEMORY_DELTA_H_
