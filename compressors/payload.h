#ifndef BANDONEON_COMPRESSORS_PAYLOAD_H_
#define BANDONEON_COMPRESSORS_PAYLOAD_H_

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "common/base/bytes.h"
#include "compressors/compressor.h"

// What the codecs share. Internal to compressors/.

namespace bdn {

constexpr size_t DivideUp(size_t a, size_t b) { return a / b + (a % b != 0); }
constexpr size_t AlignUp4(size_t bytes) { return DivideUp(bytes, 4) * 4; }

// InvalidArgument "element 17 is nan" at the first element whose product with `scale` is not
// finite.
absl::Status CheckFinite(ConstView x, float scale);
// The same, where `i` was already found.
absl::Status NonFiniteElement(size_t i, double value);

// InvalidArgument that names the codec and both sizes, unless they are equal.
absl::Status CheckPayloadSize(const Compressor& codec, size_t got, size_t expected, size_t n);
absl::Status CheckSupports(const Compressor& codec, DType dtype);

// Reads scale * x as float32 a tile at a time: the array itself where nothing has to be done, else
// through a buffer that stays in the first-level cache. Owned by one call; 16 KiB of stack.
class TileReader {
 public:
  static constexpr size_t kTile = 4096;

  TileReader(ConstView x, float scale) : x_(x), scale_(scale) {}

  // REQUIRES: offset + count <= x.n, count <= kTile. Valid until the next call.
  const float* Read(size_t offset, size_t count);

 private:
  const ConstView x_;
  const float scale_;
  alignas(64) float tile_[kTile];
};

// Calls visit(offset, count) for the tiles of [begin, end) in order.
template <typename Visit>
void ForEachTile(size_t begin, size_t end, const Visit& visit) {
  for (size_t at = begin; at < end; at += TileReader::kTile) {
    visit(at, std::min(TileReader::kTile, end - at));
  }
}

}  // namespace bdn

#endif  // BANDONEON_COMPRESSORS_PAYLOAD_H_
