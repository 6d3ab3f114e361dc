#include "common/transport/free_ranges.h"

#include <iterator>

namespace bdn {

std::optional<size_t> FreeRanges::Take(size_t size) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < size) continue;
    free_.erase(range);
    if (length > size) free_[offset + size] = length - size;
    return offset;
  }
  return std::nullopt;
}

void FreeRanges::Give(size_t offset, size_t size) {
  // The next range is joined first, so that the range before takes both along.
  auto range = free_.emplace(offset, size).first;
  const auto next = std::next(range);
  if (next != free_.end() && offset + size == next->first) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range == free_.begin()) return;
  const auto before = std::prev(range);
  if (before->first + before->second != offset) return;
  before->second += range->second;
  free_.erase(range);
}

}  // namespace bdn
