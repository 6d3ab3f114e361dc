#include "common/cluster/table_spec.h"

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

constexpr const char* kInits[] = {"zeros", "constant", "uniform", "normal"};
constexpr std::array kOptions = {
    SpecOption{"rows", "0", "a whole number from 0 (any id) to 2^63"},
    SpecOption{"init", "zeros", "zeros, constant, uniform or normal"},
    SpecOption{"value", "0", "a number from -1e6 to 1e6"},
    SpecOption{"expect", "0", "a whole number from 0 to 2^40"},
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
  BDN_RETURN_IF_ERROR(spec.Check(values));
  const std::string_view whole = spec.PartSince(begin);
  BDN_RETURN_IF_ERROR(spec.ExpectEnd());
  const bool has_value = table.init != Init::kZeros;
  if (!has_value && table.value != 0) return spec.Bad(whole, "init=zeros takes no value");
  const bool is_width = table.init == Init::kUniform || table.init == Init::kNormal;
  if (is_width && table.value < 0) return spec.Bad(whole, "the value must not be negative");
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
  return SpecText("table", options);
}

uint64_t TableSpec::ExpectedRows() const {
  if (expect != 0) return expect;
  return rows != 0 && rows < kGuessedRows ? rows : kGuessedRows;
}

bool IsRowBuckets(uint64_t buckets) {
  return std::has_single_bit(buckets) && buckets <= kMaxRowBuckets;
}

}  // namespace bdn
