#ifndef BANDONEON_WORKER_PIPELINE_CHUNKED_PAYLOAD_H_
#define BANDONEON_WORKER_PIPELINE_CHUNKED_PAYLOAD_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "common/base/bytes.h"
#include "common/base/draw.h"
#include "common/base/dtype.h"
#include "compressors/codec.h"

// A whole tensor encoded in chunks of kChunkElements; the last may be shorter. Each chunk is a
// payload whose offset follows from the codec and the number of elements alone, so that any part
// can be decoded without the rest. REQUIRES for all: codec.bounds_itself(), because decoding then
// stays in bounds whatever the bytes are.

namespace bdn {

inline constexpr size_t kChunkElements = size_t{64} << 10;

// Returns the bytes of all chunks of n elements.
size_t ChunkedBytes(const Codec& codec, size_t n);

// Encodes x chunk by chunk; `draw(i)` returns the draw of chunk i. InvalidArgument: an element is
// not finite. REQUIRES: codec.Supports(x.dtype), out.size() >= ChunkedBytes(codec, x.n), and out is
// aligned to 8.
absl::Status EncodeChunks(const Codec& codec, ConstView x,
                          const std::function<Draw(uint32_t)>& draw, MutableByteSpan out);

// Sets y[i] to scale * decoded[offset + i], or adds that to y[i] if `adds`. `y` is float32.
// REQUIRES: `in` holds n elements, offset + y.n <= n.
void DecodeChunks(const Codec& codec, ByteSpan in, size_t n, size_t offset, float scale, bool adds,
                  MutableView y);

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_CHUNKED_PAYLOAD_H_
