#ifndef BANDONEON_SERVER_ROWS_ROW_CELLS_H_
#define BANDONEON_SERVER_ROWS_ROW_CELLS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace bdn {

// The ids of one list of a bounded table, by the cell in which a hash puts them. A cell that has
// more ids than it may gives some up, which depends on nothing outside it. A value; not
// thread-safe.
class RowCells {
 public:
  // `cells`, of the whole table, is a power of two; each may have `most` ids.
  RowCells(uint32_t cells, size_t most) : cells_(cells), most_(most) {}

  // REQUIRES: it is not there.
  void Add(uint64_t id);
  // REQUIRES: it is there.
  void Remove(uint64_t id);
  std::span<const uint64_t> ids(uint32_t cell) const;
  size_t most() const { return most_; }
  // Returns the cells that have more ids than they may, each once, and forgets that they have.
  std::vector<uint32_t> TakeFull();
  // Returns about how many bytes of memory they take.
  size_t bytes() const;

 private:
  uint32_t cells_;
  size_t most_;
  size_t room_ = 0;  // of all lists of ids
  absl::flat_hash_map<uint32_t, std::vector<uint64_t>> ids_;
  std::vector<uint32_t> full_;  // cells that once had more ids than they may
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_CELLS_H_
