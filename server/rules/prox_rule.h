#ifndef BANDONEON_SERVER_RULES_PROX_RULE_H_
#define BANDONEON_SERVER_RULES_PROX_RULE_H_

#include "kernels/prox_kernels.h"
#include "server/update_rule.h"

namespace bdn {

// The rule of consensus ADMM with a separable penalty p (arXiv 1809.03655). Contributions are
// differences x - v_i between the common weights x and v_i = x_i + u_i, the weights of worker i
// plus its scaled dual variable. With D their weighted mean and W the sum of the weights:
//
//   m = x - D;   x <- argmin over z of p(z) + rho * W / 2 * (z - m)^2
//
// The factor of the square is rho * W, since each worker's own problem has rho / 2 of it. The
// penalties are lambda times
//
//   l1      |z|
//   scad    |z| up to lambda, flat from theta * lambda on, smooth in between (Fan and Li)
//   mcp     |z| at 0, flat from theta * lambda on, smooth in between (Zhang)
//   capped  min(|z|, theta)
//
// All but l1 may have several minima: the least counts, and of equal ones the smallest z. The
// penalty of logarithms (LSP) is left to workers, because rules use no transcendental functions.
// Without dual variables the rule averages weights, and shrinks the mean.
class ProxRule final : public UpdateRule {
 public:
  explicit ProxRule(const RuleSpec& spec);
  int slots() const override { return 0; }
  void Update(const UpdateSlice& slice, const UpdateFacts& facts) const override;

 private:
  const ProxPenalty penalty_;
  const double lambda_;
  const double theta_;
  const double rho_;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_RULES_PROX_RULE_H_
