#include "server/rows/row_cells.h"

#include <algorithm>
#include <utility>

#include "common/wire/packed_ids.h"

namespace bdn {

void RowCells::Add(uint64_t id) {
  const uint32_t cell = BucketOf(id, cells_);
  std::vector<uint64_t>& ids = ids_[cell];
  room_ -= ids.capacity();
  ids.push_back(id);
  room_ += ids.capacity();
  if (ids.size() == most_ + 1) full_.push_back(cell);
}

void RowCells::Remove(uint64_t id) {
  const auto found = ids_.find(BucketOf(id, cells_));
  std::vector<uint64_t>& ids = found->second;
  *std::ranges::find(ids, id) = ids.back();
  ids.pop_back();
  if (!ids.empty()) return;
  room_ -= ids.capacity();
  ids_.erase(found);
}

std::span<const uint64_t> RowCells::ids(uint32_t cell) const {
  const auto found = ids_.find(cell);
  return found == ids_.end() ? std::span<const uint64_t>() : found->second;
}

std::vector<uint32_t> RowCells::TakeFull() {
  std::vector<uint32_t> full = std::exchange(full_, {});
  std::ranges::sort(full);
  full.erase(std::unique(full.begin(), full.end()), full.end());
  std::erase_if(full, [this](uint32_t cell) { return ids(cell).size() <= most_; });
  return full;
}

size_t RowCells::bytes() const {
  return room_ * sizeof(uint64_t) + ids_.capacity() * (sizeof(decltype(ids_)::value_type) + 1);
}

}  // namespace bdn
