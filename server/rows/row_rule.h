#ifndef BANDONEON_SERVER_ROWS_ROW_RULE_H_
#define BANDONEON_SERVER_ROWS_ROW_RULE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "link/row_rule_spec.h"

namespace bdn {

// The facts of a closed round that a row rule needs. A rule makes them, once for all rows.
struct RowFacts {
  float learning_rate = 0;  // the same at every contributor
  float rate = 0;           // the factor of a step, where it is another and the same for all rows
};

// An algorithm that updates one row from the mean of its gradients. Stateless, const, thread-safe.
// In float32, every operation rounded on its own and without transcendental functions, so that a
// row's bits are the same on every machine and in whatever bucket it lies.
class RowRule {
 public:
  virtual ~RowRule() = default;

  // Sets the moments of a row that was never updated.
  virtual void Begin(std::span<float> moments) const = 0;
  // Returns whether moments are some that the rule can have left.
  virtual bool Accepts(std::span<const float> moments) const = 0;
  // Makes the facts of a round. `step` counts the table's updates, this one included.
  virtual RowFacts FactsOf(float learning_rate, uint64_t /*step*/) const {
    return {.learning_rate = learning_rate, .rate = learning_rate};
  }
  // Makes one step of a row, and returns whether the row and its moments are finite after it.
  // `row_updates` counts the row's own updates, this one included. REQUIRES: mean.size() ==
  // x.size(); `moments` has RowRuleSpec::MomentFloats; the mean is finite.
  virtual bool Update(const RowFacts& facts, uint64_t row_updates, std::span<const float> mean,
                      std::span<float> x, std::span<float> moments) const = 0;
};

// Null: `mean`, by which no row is held.
std::unique_ptr<const RowRule> MakeRowRule(const RowRuleSpec& spec);

}  // namespace bdn

#endif  // BANDONEON_SERVER_ROWS_ROW_RULE_H_
