#ifndef BANDONEON_LINK_RULE_SPEC_H_
#define BANDONEON_LINK_RULE_SPEC_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn {

// The update rule of a tensor as it is declared, "sgd(momentum=0.9,nesterov=true)": what the
// servers make of the sum of the contributions. server/rules/ has the arithmetic.
class RuleSpec {
 public:
  enum class Kind { kMean, kSgd, kAdamW, kSignMomentum, kNesterov, kSlowMo, kAverage };

  // InvalidArgument shows the spec, carets under the bad part, and what was expected there or the
  // nearest known name.
  static absl::StatusOr<RuleSpec> Parse(std::string_view text);

  Kind kind() const { return kind_; }
  // Whether the servers hold the weights and replies carry them, not an aggregate.
  bool holds_weights() const { return kind_ != Kind::kMean; }
  // Whether the direction of its step is -1, 0 or +1 everywhere, which is all that whoever holds
  // the weights needs to follow.
  bool steps_by_signs() const { return kind_ == Kind::kSignMomentum; }
  // Arrays as long as the weights that it keeps besides, at the servers.
  int moments() const;
  // The value of an option, true as 1. REQUIRES: the rule has an option of this name.
  double option(std::string_view name) const;

  // Canonical: the name and the options that differ from their defaults, in the order of the table.
  std::string text() const;

 private:
  Kind kind_ = Kind::kMean;
  std::vector<double> values_;  // by row of the rule's options
};

// For people: a line a rule.
std::string DescribeRules();

}  // namespace bdn

#endif  // BANDONEON_LINK_RULE_SPEC_H_
