#include "worker/rows/row_set.h"

#include <algorithm>
#include <tuple>

#include "common/wire/packed_ids.h"

namespace bdn {

RowSet::RowSet(std::span<const uint64_t> ids, uint32_t buckets) {
  if (ids.empty()) return;
  struct Entry {
    uint64_t id;
    uint32_t bucket;
    uint32_t position;
  };
  // Buckets are told apart first, by counting, so that what is sorted is short.
  begins_.assign(buckets + 1, 0);
  std::vector<size_t> ends(buckets + 1, 0);
  std::vector<Entry> all(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    all[i] = {ids[i], BucketOf(ids[i], buckets), static_cast<uint32_t>(i)};
    ++ends[all[i].bucket + 1];
  }
  for (uint32_t bucket = 0; bucket < buckets; ++bucket) ends[bucket + 1] += ends[bucket];
  std::vector<Entry> sorted(all.size());
  std::vector<size_t> next(ends.begin(), ends.end() - 1);
  for (const Entry& entry : all) sorted[next[entry.bucket]++] = entry;
  positions_.reserve(ids.size());
  for (uint32_t bucket = 0; bucket < buckets; ++bucket) {
    begins_[bucket] = ids_.size();
    const auto first = sorted.begin() + static_cast<ptrdiff_t>(ends[bucket]);
    const auto last = sorted.begin() + static_cast<ptrdiff_t>(ends[bucket + 1]);
    std::sort(first, last, [](const Entry& a, const Entry& b) {
      return std::tie(a.id, a.position) < std::tie(b.id, b.position);
    });
    for (auto entry = first; entry != last; ++entry) {
      if (entry == first || entry->id != ids_.back()) {
        firsts_.push_back(positions_.size());
        ids_.push_back(entry->id);
      }
      positions_.push_back(entry->position);
    }
  }
  begins_[buckets] = ids_.size();
  firsts_.push_back(positions_.size());
}

std::span<const uint64_t> RowSet::ids(uint32_t bucket) const {
  if (begins_.empty()) return {};
  return std::span(ids_).subspan(begins_[bucket], begins_[bucket + 1] - begins_[bucket]);
}

void AddRows(const RowSet& set, size_t i, const float* rows, std::span<float> row) {
  const std::span<const uint32_t> positions = set.positions(i);
  std::copy_n(rows + positions[0] * row.size(), row.size(), row.data());
  for (const uint32_t position : positions.subspan(1)) {
    const float* const more = rows + position * row.size();
    for (size_t j = 0; j < row.size(); ++j) row[j] += more[j];
  }
}

}  // namespace bdn
