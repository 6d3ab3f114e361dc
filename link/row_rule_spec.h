#ifndef BANDONEON_LINK_ROW_RULE_SPEC_H_
#define BANDONEON_LINK_ROW_RULE_SPEC_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace bdn {

// The update rule of tables, as it is declared: "adagrad(eps=1e-08)". Each rule is lazy: a row that
// no worker pushes in a step stays as it is, with its moments. server/rows/ has the arithmetic. Of
// "mean" the servers hold no rows: every worker gets the means of all rows that any has pushed. A
// value; thread-compatible.
class RowRuleSpec {
 public:
  enum class Kind { kMean, kSgd, kAdagrad, kRowwiseAdagrad, kAdamW, kFtrl };

  // Parses a spec. InvalidArgument shows the spec, carets under the bad part, and what was expected
  // there; momentum is refused with the reason.
  static absl::StatusOr<RowRuleSpec> Parse(std::string_view text);

  Kind kind() const { return kind_; }
  // Returns whether the servers hold no rows, but tell everybody the means of a step.
  bool is_mean() const { return kind_ == Kind::kMean; }
  // Returns the value of an option, by its place in the rule's row of the table.
  double option(size_t i) const { return values_[i]; }
  // Returns the number of floats that the rule keeps beside a row of `width` elements.
  size_t MomentFloats(size_t width) const;
  // Returns the canonical spec.
  std::string text() const;

 private:
  static constexpr size_t kMostOptions = 5;
  Kind kind_ = Kind::kSgd;
  std::array<double, kMostOptions> values_{};
};

}  // namespace bdn

#endif  // BANDONEON_LINK_ROW_RULE_SPEC_H_
