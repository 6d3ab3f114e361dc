#ifndef BANDONEON_SERVER_RULES_GRADIENT_RULES_H_
#define BANDONEON_SERVER_RULES_GRADIENT_RULES_H_

#include "server/update_rule.h"

namespace bdn {

// Rules whose contributions are gradients. In the formulas g is their weighted mean, lr the
// learning rate and x the weights.

// The rule of SGD as in PyTorch, without dampening:
//   g <- g + decay * x;   m <- momentum * m + g
//   x <- x - lr * (nesterov ? g + momentum * m : m)
class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(const RuleSpec& spec);
  int slots() const override { return momentum_ != 0 ? 1 : 0; }
  void Update(const UpdateSlice& slice, const UpdateFacts& facts) const override;

 private:
  const float momentum_;
  const float decay_;
  const bool nesterov_;
};

// The rule of AdamW (Decoupled weight decay regularization, arXiv 1711.05101), with the operations
// in PyTorch's order:
//   x <- (1 - lr * decay) * x
//   m <- m + (1 - beta1) * (g - m);   v <- beta2 * v + (1 - beta2) * g^2
//   x <- x - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
// for the t-th update. The powers are products in float64.
class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const RuleSpec& spec);
  int slots() const override { return 2; }
  void Update(const UpdateSlice& slice, const UpdateFacts& facts) const override;

 private:
  const double beta1_;
  const double beta2_;
  const double decay_;
  const float eps_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_RULES_GRADIENT_RULES_H_
