#ifndef BANDONEON_COMMON_CLUSTER_TABLE_SPEC_H_
#define BANDONEON_COMMON_CLUSTER_TABLE_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace bdn {

// The longest row of a table, in elements.
inline constexpr uint64_t kMaxRowWidth = 1024;
// The most buckets into which a table is divided. A number of buckets is a power of two.
inline constexpr uint32_t kMaxRowBuckets = 4096;

// The facts of one table of rows, as they are declared: "table(rows=1000,init=uniform,value=0.1)".
// A value; thread-compatible.
struct TableSpec {
  // How the first value of a row is made; server/rows/initial_row.h has the arithmetic.
  enum class Init : uint8_t { kZeros, kConstant, kUniform, kNormal };

  uint64_t rows = 0;  // ids are below it; 0: any 64-bit id
  Init init = Init::kZeros;
  double value = 0;     // of kConstant the value, of kUniform the bound, of kNormal the deviation
  uint64_t expect = 0;  // the rows that are expected, for placement and memory; 0: not known

  // Parses a spec. InvalidArgument shows the spec, with carets under the bad part.
  static absl::StatusOr<TableSpec> Parse(std::string_view text);
  // Returns the canonical spec.
  std::string text() const;
  // Returns the number of rows by which a table counts for placement: `expect`, or `rows`, or a
  // guess.
  uint64_t ExpectedRows() const;

  bool operator==(const TableSpec&) const = default;
};

// Returns whether a number of buckets is a power of two from 1 to kMaxRowBuckets.
bool IsRowBuckets(uint64_t buckets);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_TABLE_SPEC_H_
