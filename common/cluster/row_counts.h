#ifndef BANDONEON_COMMON_CLUSTER_ROW_COUNTS_H_
#define BANDONEON_COMMON_CLUSTER_ROW_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace bdn {

// The rows of tables at a server, and what became of rows since it joined.
struct RowCounts {
  uint64_t held = 0;
  uint64_t added = 0;
  uint64_t removed = 0;       // because of a bound or of their age
  uint64_t not_admitted = 0;  // gradients that were dropped, as their rows were not admitted yet

  bool operator==(const RowCounts&) const = default;
  RowCounts& operator+=(const RowCounts& other) {
    held += other.held;
    added += other.added;
    removed += other.removed;
    not_admitted += other.not_admitted;
    return *this;
  }
};

// A server tells the counts of so many tables at most with a heartbeat, and of names of so many
// bytes together: a message of gRPC has at most 4 MiB.
inline constexpr size_t kMostTablesTold = 1024;
inline constexpr size_t kMostNameBytesTold = size_t{1} << 20;

// The rows of one table: in some buckets of it, at a server, or in a job.
struct TableCounts {
  std::string table;  // its declared name
  RowCounts rows;
  uint64_t bytes = 0;    // the memory that they take, with their moments and candidates
  uint64_t updates = 0;  // of the table, not of rows: the most of any bucket

  bool operator==(const TableCounts&) const = default;
  // Adds the counts of other buckets of the same table.
  TableCounts& operator+=(const TableCounts& other) {
    rows += other.rows;
    bytes += other.bytes;
    updates = updates < other.updates ? other.updates : updates;
    return *this;
  }
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_ROW_COUNTS_H_
