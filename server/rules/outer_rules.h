#ifndef BANDONEON_SERVER_RULES_OUTER_RULES_H_
#define BANDONEON_SERVER_RULES_OUTER_RULES_H_

#include "server/update_rule.h"

namespace bdn {

// Rules for the outer step of training with local steps. Contributions are differences x - x_i
// between the common weights x and those that worker i has reached from them. In the formulas D is
// their weighted mean, and lr the workers' own learning rate at the time.

// The rule of distributed sign momentum (arXiv 2411.17866), with d = D / lr:
//   u = beta1 * m + (1 - beta1) * d;   m <- beta2 * m + (1 - beta2) * d
//   x <- (1 - decay * eta * lr) * x - eta * lr * sign(u)
// sign(0) is 0, so that weights that no worker touches stay but for the decay. Where lr is 0, d is
// 0.
class SignMomentumRule final : public UpdateRule {
 public:
  explicit SignMomentumRule(const RuleSpec& spec);
  int slots() const override { return 1; }
  void Update(const UpdateSlice& slice, const UpdateFacts& facts) const override;

 private:
  const double eta_;
  const double decay_;
  const float beta1_;
  const float new1_;
  const float beta2_;
  const float new2_;
};

// The rule of DiLoCo's outer step (arXiv 2311.08105), Nesterov's momentum with a rate of its own:
//   m <- momentum * m + D;   x <- x - lr_outer * (D + momentum * m)
class NesterovRule final : public UpdateRule {
 public:
  explicit NesterovRule(const RuleSpec& spec);
  int slots() const override { return 1; }
  void Update(const UpdateSlice& slice, const UpdateFacts& facts) const override;

 private:
  const float rate_;
  const float momentum_;
};

// The rule of SlowMo (arXiv 1910.00643):
//   m <- beta * m + D / lr;   x <- x - alpha * lr * m
// Where lr is 0, D / lr is 0.
class SlowMoRule final : public UpdateRule {
 public:
  explicit SlowMoRule(const RuleSpec& spec);
  int slots() const override { return 1; }
  void Update(const UpdateSlice& slice, const UpdateFacts& facts) const override;

 private:
  const float beta_;
  const double alpha_;
};

// The rule of local SGD (arXiv 1805.09767), which sets the weights to the mean of the workers':
//   x <- x - D
class AverageRule final : public UpdateRule {
 public:
  int slots() const override { return 0; }
  void Update(const UpdateSlice& slice, const UpdateFacts& facts) const override;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_RULES_OUTER_RULES_H_
