#ifndef BANDONEON_COMMON_CLUSTER_TABLE_SPEC_H_
#define BANDONEON_COMMON_CLUSTER_TABLE_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn {

// The longest row of a table, in elements.
inline constexpr uint64_t kMaxRowWidth = 1024;
// The most buckets into which a table is divided. A number of buckets is a power of two.
inline constexpr uint32_t kMaxRowBuckets = 4096;

// A table that is bounded has at least so many rows for each of its buckets.
inline constexpr uint64_t kLeastRowsABucket = 64;
// The largest number of pushes and of updates that an admission and a ttl may ask for.
inline constexpr uint64_t kMostAdmit = uint64_t{1} << 20;
inline constexpr uint64_t kMostTtl = uint64_t{1} << 31;

// The facts of one table of rows, as they are declared: "table(rows=1000,init=uniform,value=0.1)".
// A value; thread-compatible.
struct TableSpec {
  // How the first value of a row is made; server/rows/initial_row.h has the arithmetic.
  enum class Init : uint8_t { kZeros, kConstant, kUniform, kNormal };
  // Which rows of a full table are removed: none, so that the step fails; those that were updated
  // longest ago; or those that were updated least often.
  enum class Evict : uint8_t { kNone, kLru, kLfu };

  uint64_t rows = 0;  // ids are below it; 0: any 64-bit id
  Init init = Init::kZeros;
  double value = 0;     // of kConstant the value, of kUniform the bound, of kNormal the deviation
  uint64_t expect = 0;  // the rows that are expected, for placement and memory; 0: not known
  uint64_t admit = 1;   // a row is stored once so many updates, the last included, had its gradient
  uint64_t max_rows = 0;  // that are held at once; 0: any number
  Evict evict = Evict::kNone;
  uint64_t ttl = 0;  // a row without one in so many updates of the table is removed; 0: never

  // Parses a spec. InvalidArgument shows the spec, with carets under the bad part.
  static absl::StatusOr<TableSpec> Parse(std::string_view text);
  // Returns the canonical spec.
  std::string text() const;
  // Returns the number of rows by which a table counts for placement: `expect`, or `rows`, or a
  // guess.
  uint64_t ExpectedRows() const;
  // Returns whether rows are not admitted at once, are bounded or may be removed.
  bool IsLimited() const { return admit > 1 || max_rows != 0 || ttl != 0; }
  // Returns the number of cells of a bounded table, a power of two: its rows are counted and
  // removed by cell, so that which ones are removed does not depend on the number of buckets, each
  // of which has whole cells.
  uint32_t Cells() const;

  bool operator==(const TableSpec&) const = default;
};

// Returns whether a number of buckets is a power of two from 1 to kMaxRowBuckets.
bool IsRowBuckets(uint64_t buckets);
// Returns the number of buckets in a job whose setting row-buckets is `setting`.
uint32_t RowBucketsOf(uint32_t setting, int num_servers);
// InvalidArgument: the bound of a table is too small for so many buckets.
absl::Status CheckMaxRows(const TableSpec& spec, std::string_view name, uint32_t buckets);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_TABLE_SPEC_H_
