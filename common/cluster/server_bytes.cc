#include "common/cluster/server_bytes.h"

#include <string_view>

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

}  // namespace

uint64_t ServerBytes(const TensorDeclaration& tensor) {
  return tensor.kind == KeyKind::kDense ? DenseBytes(tensor) : TensorBytes(tensor);
}

uint64_t ServerBytes(const KeyEntry& key) {
  return key.kind == KeyKind::kDense ? DenseBytes(key) : KeyBytes(key);
}

}  // namespace bdn
