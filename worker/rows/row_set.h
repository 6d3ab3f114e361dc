#ifndef BANDONEON_WORKER_ROWS_ROW_SET_H_
#define BANDONEON_WORKER_ROWS_ROW_SET_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bdn {

// The ids of one table in a call: each once, by bucket and rising, and the positions at which each
// stands in the caller's list.
class RowSet {
 public:
  RowSet() = default;
  // REQUIRES: `buckets` is a power of two; fewer than 2^32 ids.
  RowSet(std::span<const uint64_t> ids, uint32_t buckets);

  size_t size() const { return ids_.size(); }
  size_t num_positions() const { return positions_.size(); }
  bool empty() const { return ids_.empty(); }
  // Returns the ids of a bucket; none where the set was made of no ids.
  std::span<const uint64_t> ids(uint32_t bucket) const;
  // Returns the number of ids in the buckets before this one.
  size_t begin(uint32_t bucket) const { return begins_.empty() ? 0 : begins_[bucket]; }
  // Returns where the i-th id of the whole set stands in the caller's list, rising.
  std::span<const uint32_t> positions(size_t i) const {
    return std::span(positions_).subspan(firsts_[i], firsts_[i + 1] - firsts_[i]);
  }
  // Returns the positions of the i-th id and of those behind it, in the order of the set.
  std::span<const uint32_t> positions_from(size_t i) const {
    return std::span(positions_).subspan(firsts_[i]);
  }

 private:
  std::vector<uint64_t> ids_;
  std::vector<size_t> begins_;  // by bucket, and the end
  std::vector<uint32_t> positions_;
  std::vector<size_t> firsts_;  // by id, and the end
};

// Returns the sum of the rows of the i-th id of a set, added in the order in which the caller has
// them, so that the bits follow from the input alone. `rows` is
// float32[set.num_positions()][width], where scratch.size() is the width; one row is returned as it
// lies there. The rows of the ids behind are brought to the cache: ids are merged in their order.
std::span<const float> MergeRows(const RowSet& set, size_t i, const float* rows,
                                 std::span<float> scratch);

}  // namespace bdn

#endif  // BANDONEON_WORKER_ROWS_ROW_SET_H_
