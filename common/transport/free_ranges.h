#ifndef BANDONEON_COMMON_TRANSPORT_FREE_RANGES_H_
#define BANDONEON_COMMON_TRANSPORT_FREE_RANGES_H_

#include <cstddef>
#include <map>
#include <optional>

namespace bdn {

// What is free of an array, as ranges of which neighbours are joined. The first that is long enough is
// taken from. Not thread-safe.
class FreeRanges {
 public:
  explicit FreeRanges(size_t size) {
    if (size > 0) free_[0] = size;
  }

  // Where `size` of it begin; nothing where no range is so long. REQUIRES: size > 0.
  std::optional<size_t> Take(size_t size);
  // REQUIRES: they were taken.
  void Give(size_t offset, size_t size);

 private:
  std::map<size_t, size_t> free_;  // size by offset
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FREE_RANGES_H_
