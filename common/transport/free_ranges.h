#ifndef BANDONEON_COMMON_TRANSPORT_FREE_RANGES_H_
#define BANDONEON_COMMON_TRANSPORT_FREE_RANGES_H_

#include <cstddef>
#include <map>
#include <optional>

namespace bdn {

// The free ranges of an array. Neighbours are joined, and the first range that is long enough is
// taken from. Not thread-safe.
class FreeRanges {
 public:
  explicit FreeRanges(size_t size) {
    if (size > 0) free_[0] = size;
  }

  // Takes `size` elements and returns the index of the first; nothing where no range is so long.
  // REQUIRES: size > 0.
  std::optional<size_t> Take(size_t size);
  // Gives back `size` elements from `offset` on. REQUIRES: they were taken.
  void Give(size_t offset, size_t size);

 private:
  std::map<size_t, size_t> free_;  // size by offset
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FREE_RANGES_H_
