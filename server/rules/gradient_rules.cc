#include "server/rules/gradient_rules.h"

#include <cmath>

#include "kernels/update_kernels.h"

namespace bdn {
namespace {

// Returns base^exponent by squaring: the bits are the same on every machine, which std::pow does
// not promise.
double Power(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

}  // namespace

SgdRule::SgdRule(const RuleSpec& spec)
    : momentum_(static_cast<float>(spec.option("momentum"))),
      decay_(static_cast<float>(spec.option("decay"))),
      nesterov_(spec.option("nesterov") != 0) {}

void SgdRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  StepWithMomentum({.scale = facts.inverse_weight,
                    .decay = decay_,
                    .momentum = momentum_,
                    .nesterov = nesterov_,
                    .rate = facts.learning_rate},
                   slice.sum, slice.n, slice.moments[0], slice.weights);
}

AdamWRule::AdamWRule(const RuleSpec& spec)
    : beta1_(spec.option("beta1")),
      beta2_(spec.option("beta2")),
      decay_(spec.option("decay")),
      eps_(static_cast<float>(spec.option("eps"))) {}

void AdamWRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  const uint64_t t = facts.updates + 1;
  const double lr = facts.learning_rate;
  StepAdam({.scale = facts.inverse_weight,
            .new1 = static_cast<float>(1 - beta1_),
            .old2 = static_cast<float>(beta2_),
            .new2 = static_cast<float>(1 - beta2_),
            .keep = static_cast<float>(1 - lr * decay_),
            .rate = static_cast<float>(lr / (1 - Power(beta1_, t))),
            .root = static_cast<float>(std::sqrt(1 - Power(beta2_, t))),
            .eps = eps_},
           slice.sum, slice.n, slice.moments[0], slice.moments[1], slice.weights);
}

}  // namespace bdn
