#ifndef BANDONEON_LINK_RULE_SPEC_H_
#define BANDONEON_LINK_RULE_SPEC_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace bdn {

// The update rule of a tensor as it is declared, "sgd(momentum=0.9,nesterov=true)": what the
// servers compute from the sum of the contributions. server/rules/ has the arithmetic. A value;
// thread-compatible.
class RuleSpec {
 public:
  enum class Kind { kMean, kSgd, kAdamW, kSignMomentum, kNesterov, kSlowMo, kAverage, kProx };
  // The penalties of `prox`, in the order of the values of its option.
  enum class Penalty { kL1, kScad, kMcp, kCapped };

  // Parses a spec. InvalidArgument shows the spec, carets under the bad part, and what was expected
  // there or the nearest known name.
  static absl::StatusOr<RuleSpec> Parse(std::string_view text);

  Kind kind() const { return kind_; }
  // Returns whether the servers hold the weights, and replies carry those in place of an aggregate.
  bool holds_weights() const { return kind_ != Kind::kMean; }
  // Returns whether the direction of its step is -1, 0 or +1 everywhere. A holder of the weights
  // needs only these signs to follow.
  bool steps_by_signs() const { return kind_ == Kind::kSignMomentum; }
  // Returns how many arrays as long as the weights it keeps beside them, at the servers.
  int moments() const;
  // Returns the value of an option: 1 for true, the index of a name among those that there are.
  // REQUIRES: the rule has an option of this name.
  double option(std::string_view name) const;
  // Returns the penalty of `prox`. REQUIRES: it is the rule.
  Penalty penalty() const;

  // Returns the canonical spec: the name, and the options that differ from their defaults, in the
  // order of the table.
  std::string text() const;

 private:
  Kind kind_ = Kind::kMean;
  std::vector<double> values_;  // indexed by row of the rule's options
};

// Returns a text for people, with one line for each rule.
std::string DescribeRules();

}  // namespace bdn

#endif  // BANDONEON_LINK_RULE_SPEC_H_
