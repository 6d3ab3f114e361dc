#include "common/cluster/server_bytes.h"

#include <string_view>

#include "common/cluster/table_spec.h"

namespace bdn {
namespace {

constexpr uint64_t kFloat = sizeof(float);

// Returns the bytes of one element for the kept reply, and for the pull's residual or replica.
uint64_t PullBytes(std::string_view spec) {
  if (spec == "none") return kFloat;
  const bool has_memory = spec.starts_with("ef(") || spec.starts_with("delta(");
  const bool is_half = spec.find("fp16") != spec.npos || spec.find("bf16") != spec.npos;
  // Half precision takes two bytes an element; any other lossy codec is taken as one byte, which is
  // an estimate.
  return (is_half ? 2 : 1) + (has_memory ? kFloat : 0);
}

// Returns the bytes of one element for the weights and the moments of a rule.
uint64_t RuleBytes(std::string_view rule) {
  if (rule == "mean") return 0;
  return kFloat + (rule.starts_with("adamw") ? 2 * kFloat : kFloat);
}

template <typename Value>
uint64_t DenseBytes(const Value& value) {
  const uint64_t sum = value.dtype == DType::kFloat64 ? sizeof(double) : kFloat;
  return value.elements * (sum + PullBytes(value.pull_spec) + RuleBytes(value.rule));
}

// Returns the bytes that the expected rows of a table take with their moments.
uint64_t TableBytes(uint64_t width, std::string_view rule, std::string_view table) {
  const absl::StatusOr<TableSpec> spec = TableSpec::Parse(table);
  const uint64_t rows = spec.ok() ? spec->ExpectedRows() : 1;
  return rows * width * RuleBytes(rule);
}

}  // namespace

uint64_t ServerBytes(const TensorDeclaration& tensor) {
  if (tensor.kind == KeyKind::kRows) return TableBytes(tensor.elements, tensor.rule, tensor.table);
  return tensor.kind == KeyKind::kDense ? DenseBytes(tensor) : TensorBytes(tensor);
}

uint64_t ServerBytes(const KeyEntry& key) {
  if (key.kind == KeyKind::kRows) {
    return key.expected_rows * key.segments[0].elements * RuleBytes(key.rule);
  }
  return key.kind == KeyKind::kDense ? DenseBytes(key) : KeyBytes(key);
}

}  // namespace bdn
