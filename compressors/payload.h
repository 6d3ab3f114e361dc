#ifndef BANDONEON_COMPRESSORS_PAYLOAD_H_
#define BANDONEON_COMPRESSORS_PAYLOAD_H_

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "absl/status/status.h"
#include "common/base/bytes.h"
#include "compressors/codec.h"

// Helpers that the codecs share. Internal to compressors/.

namespace bdn {

constexpr size_t DivideUp(size_t a, size_t b) { return a / b + (a % b != 0); }
constexpr size_t AlignUp4(size_t bytes) { return DivideUp(bytes, 4) * 4; }

// Returns InvalidArgument "element 17 is nan" for the first element whose product with `scale` is
// not finite, or OK.
absl::Status CheckFinite(ConstView x, float scale);
// Returns that error for element i, which the caller has already found.
absl::Status NonFiniteElement(size_t i, double value);

// Returns InvalidArgument, which names the codec and both sizes, unless they are equal.
absl::Status CheckPayloadSize(const Codec& codec, size_t got, size_t expected, size_t n);
absl::Status CheckSupports(const Codec& codec, DType dtype);

// Sets y[i] to `value`, rounded to its type: float32, float16 or bfloat16.
inline void StoreElement(MutableView y, size_t i, float value) {
  if (y.dtype == DType::kFloat32) {
    y.f32()[i] = value;
    return;
  }
  static_cast<uint16_t*>(y.data)[i] =
      y.dtype == DType::kFloat16 ? FloatToHalf(value) : FloatToBFloat16(value);
}

inline constexpr size_t kTile = EncodeSource::kTile;

// Calls visit(offset, count) for the tiles of [begin, end) in order.
template <typename Visit>
void ForEachTile(size_t begin, size_t end, const Visit& visit) {
  for (size_t at = begin; at < end; at += kTile) visit(at, std::min(kTile, end - at));
}

// Calls visit for the same tiles from the last to the first. After a forward pass the last tiles
// are still in a cache.
template <typename Visit>
void ForEachTileBackward(size_t begin, size_t end, const Visit& visit) {
  for (size_t tile = DivideUp(end - begin, kTile); tile > 0; --tile) {
    const size_t at = begin + (tile - 1) * kTile;
    visit(at, std::min(kTile, end - at));
  }
}

// Does DecodeSum for codecs that can start at any tile: it sets y a tile at a time, and adds all
// payloads to each. add(payload, at, view of the tile) does view[i] += scale * decoded[at + i].
template <typename Add>
void SumByTiles(std::span<const ByteSpan> in, MutableView y, const Add& add) {
  ForEachTile(0, y.n, [&](size_t at, size_t count) {
    const MutableView tile = y.Sub(at, count);
    std::memset(tile.data, 0, count * DTypeSize(tile.dtype));
    for (const ByteSpan payload : in) add(payload, at, tile);
  });
}

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_PAYLOAD_H_
