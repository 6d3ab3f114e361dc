#include "common/cluster/table_spec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "common/base/spec_text.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// A table of which nothing is known counts as one of so many rows.
constexpr uint64_t kGuessedRows = 65536;
// An int64 that is not negative is an id of any bounded table.
constexpr size_t kMostRows = size_t{1} << 63;

// A cell has at least kLeastRowsABucket rows, and of very large tables more.
constexpr uint64_t kMostCells = uint64_t{1} << 24;

constexpr const char* kInits[] = {"zeros", "constant", "uniform", "normal"};
constexpr const char* kEvicts[] = {"none", "lru", "lfu"};
constexpr std::array kOptions = {
    SpecOption{"rows", "0", "a whole number from 0 (any id) to 2^63"},
    SpecOption{"init", "zeros", "zeros, constant, uniform or normal"},
    SpecOption{"value", "0", "a number from -1e6 to 1e6"},
    SpecOption{"expect", "0", "a whole number from 0 to 2^40"},
    SpecOption{"admit", "1", "a whole number from 1 to 2^20"},
    SpecOption{"max_rows", "0", "a whole number from 0 (no bound) to 2^40"},
    SpecOption{"evict", "none", "none, lru or lfu"},
    SpecOption{"ttl", "0", "a whole number from 0 (no end) to 2^31"},
};

}  // namespace

absl::StatusOr<TableSpec> TableSpec::Parse(std::string_view text) {
  SpecReader spec("table", text);
  const size_t begin = spec.SkipSpaces();
  const std::string_view name = spec.Name();
  if (name != "table") return spec.Bad(name, "expected table(...)");
  BDN_ASSIGN_OR_RETURN(OptionValues values, spec.Options(spec.PartSince(begin), kOptions));
  TableSpec table;
  table.rows = values.Whole(0, 0, kMostRows);
  table.init = static_cast<Init>(values.OneOf(1, kInits));
  table.value = 0.0 + values.Real(2, [](double v) { return v >= -1e6 && v <= 1e6; });
  table.expect = values.Whole(3, 0, size_t{1} << 40);
  table.admit = values.Whole(4, 1, kMostAdmit);
  table.max_rows = values.Whole(5, 0, size_t{1} << 40);
  table.evict = static_cast<Evict>(values.OneOf(6, kEvicts));
  table.ttl = values.Whole(7, 0, kMostTtl);
  BDN_RETURN_IF_ERROR(spec.Check(values));
  const std::string_view whole = spec.PartSince(begin);
  BDN_RETURN_IF_ERROR(spec.ExpectEnd());
  const bool has_value = table.init != Init::kZeros;
  if (!has_value && table.value != 0) return spec.Bad(whole, "init=zeros takes no value");
  const bool is_width = table.init == Init::kUniform || table.init == Init::kNormal;
  if (is_width && table.value < 0) return spec.Bad(whole, "the value must not be negative");
  if (table.evict != Evict::kNone && table.max_rows == 0) {
    return spec.Bad(whole, "evict removes rows of a full table, and none is without max_rows");
  }
  return table;
}

std::string TableSpec::text() const {
  std::vector<std::string> options;
  if (rows != 0) options.push_back(absl::StrFormat("rows=%d", rows));
  if (init != Init::kZeros) {
    options.push_back(std::string("init=") + kInits[static_cast<size_t>(init)]);
  }
  if (value != 0) options.push_back("value=" + RealText(value));
  if (expect != 0) options.push_back(absl::StrFormat("expect=%d", expect));
  if (admit != 1) options.push_back(absl::StrFormat("admit=%d", admit));
  if (max_rows != 0) options.push_back(absl::StrFormat("max_rows=%d", max_rows));
  if (evict != Evict::kNone) {
    options.push_back(std::string("evict=") + kEvicts[static_cast<size_t>(evict)]);
  }
  if (ttl != 0) options.push_back(absl::StrFormat("ttl=%d", ttl));
  return SpecText("table", options);
}

uint64_t TableSpec::ExpectedRows() const {
  const uint64_t guess = rows != 0 && rows < kGuessedRows ? rows : kGuessedRows;
  const uint64_t rows_expected = expect != 0 ? expect : guess;
  return max_rows != 0 ? std::min(rows_expected, max_rows) : rows_expected;
}

uint32_t TableSpec::Cells() const {
  const uint64_t cells = std::min(kMostCells, max_rows / kLeastRowsABucket);
  return static_cast<uint32_t>(std::bit_floor(std::max<uint64_t>(1, cells)));
}

bool IsRowBuckets(uint64_t buckets) {
  return std::has_single_bit(buckets) && buckets <= kMaxRowBuckets;
}

uint32_t RowBucketsOf(uint32_t setting, int num_servers) {
  if (setting != 0) return setting;
  constexpr uint32_t kForEachServer = 4;
  const auto least = kForEachServer * static_cast<uint32_t>(std::max(1, num_servers));
  return std::min(kMaxRowBuckets, std::bit_ceil(least));
}

absl::Status CheckMaxRows(const TableSpec& spec, std::string_view name, uint32_t buckets) {
  const uint64_t least = kLeastRowsABucket * buckets;
  if (spec.max_rows == 0 || spec.max_rows >= least) return absl::OkStatus();
  return InvalidArgument(
      "table '%s': max_rows=%d must be at least %d, which is %d for each of the job's %d buckets; "
      "a lower row-buckets of the scheduler allows less",
      name, spec.max_rows, least, kLeastRowsABucket, buckets);
}

}  // namespace bdn
