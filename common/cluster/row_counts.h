#ifndef BANDONEON_COMMON_CLUSTER_ROW_COUNTS_H_
#define BANDONEON_COMMON_CLUSTER_ROW_COUNTS_H_

#include <cstdint>

namespace bdn {

// The rows of tables at a server, and what became of rows since it joined.
struct RowCounts {
  uint64_t held = 0;
  uint64_t added = 0;
  uint64_t removed = 0;       // because of a bound or of their age
  uint64_t not_admitted = 0;  // gradients that were dropped, as their rows were not admitted yet

  bool operator==(const RowCounts&) const = default;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_ROW_COUNTS_H_
