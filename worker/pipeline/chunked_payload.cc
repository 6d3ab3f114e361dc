#include "worker/pipeline/chunked_payload.h"

#include <algorithm>
#include <vector>

#include "kernels/float_kernels.h"

namespace bdn {
namespace {

// Returns the distance between two chunks' payloads. It is a multiple of 8, so that every payload
// is aligned.
size_t StrideOf(const Codec& codec) {
  return (codec.MaxEncodedBytes(kChunkElements, DType::kFloat32) + 7) / 8 * 8;
}

}  // namespace

size_t ChunkedBytes(const Codec& codec, size_t n) {
  const size_t whole = n / kChunkElements;
  const size_t rest = n % kChunkElements;
  return whole * StrideOf(codec) + (codec.MaxEncodedBytes(rest, DType::kFloat32) + 7) / 8 * 8;
}

absl::Status EncodeChunks(const Codec& codec, ConstView x,
                          const std::function<Draw(uint32_t)>& draw, MutableByteSpan out) {
  const size_t stride = StrideOf(codec);
  for (size_t at = 0, i = 0; at < x.n; at += kChunkElements, ++i) {
    const ConstView chunk = x.Sub(at, std::min(kChunkElements, x.n - at));
    const auto used =
        codec.Encode(chunk, 1.0f, draw(static_cast<uint32_t>(i)), out.subspan(i * stride));
    if (!used.ok()) return used.status();
  }
  return absl::OkStatus();
}

void DecodeChunks(const Codec& codec, ByteSpan in, size_t n, size_t offset, float scale, bool adds,
                  MutableView y) {
  const size_t stride = StrideOf(codec);
  std::vector<float> whole;  // a chunk of which y has only a part
  for (size_t done = 0; done < y.n;) {
    const size_t chunk = (offset + done) / kChunkElements;
    const size_t begin = chunk * kChunkElements;
    const size_t elements = std::min(kChunkElements, n - begin);
    const size_t skip = offset + done - begin;
    const MutableView part = y.Sub(done, std::min(elements - skip, y.n - done));
    const ByteSpan payload =
        in.subspan(chunk * stride, codec.MaxEncodedBytes(elements, DType::kFloat32));
    if (part.n == elements) {
      adds ? codec.DecodeAdd(payload, scale, part) : codec.Decode(payload, scale, part);
    } else {
      whole.resize(elements);
      codec.Decode(payload, scale, {whole.data(), DType::kFloat32, elements});
      const ConstView decoded{whole.data() + skip, DType::kFloat32, part.n};
      adds ? AddScaled(decoded, 1.0f, part) : ConvertScaled(decoded, 1.0f, part);
    }
    done += part.n;
  }
}

}  // namespace bdn
