#include "worker/scattered_bytes.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace bdn {

size_t ScatteredBytes::size() const {
  size_t total = 0;
  for (const MutableByteSpan& place : places_) total += place.size();
  return total;
}

template <typename Visit>
void ScatteredBytes::ForEach(size_t offset, size_t size, const Visit& visit) const {
  size_t done = 0;
  for (const MutableByteSpan& place : places_) {
    if (done == size) return;
    if (offset >= place.size()) {
      offset -= place.size();
      continue;
    }
    const size_t count = std::min(place.size() - offset, size - done);
    visit(place.subspan(offset, count), done);
    done += count;
    offset = 0;
  }
  if (done != size) FailCheck("bytes beyond the end of scattered bytes");
}

Buffer ScatteredBytes::Copy(size_t offset, size_t size) const {
  Buffer copy = Buffer::Allocate(size);
  ForEach(offset, size, [&copy](MutableByteSpan piece, size_t at) {
    std::memcpy(copy.data() + at, piece.data(), piece.size());
  });
  return copy;
}

ByteSpan ScatteredBytes::View(size_t offset, size_t size, Buffer* scratch) const {
  size_t before = 0;
  for (const MutableByteSpan& place : places_) {
    const bool is_here = offset >= before && offset + size <= before + place.size();
    if (is_here) return place.subspan(offset - before, size);
    before += place.size();
  }
  *scratch = Copy(offset, size);
  return scratch->span();
}

void ScatteredBytes::Write(size_t offset, ByteSpan from) const {
  ForEach(offset, from.size(), [from](MutableByteSpan piece, size_t at) {
    std::memcpy(piece.data(), from.data() + at, piece.size());
  });
}

}  // namespace bdn
