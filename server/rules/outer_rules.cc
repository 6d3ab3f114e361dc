#include "server/rules/outer_rules.h"

#include "compressors/memory/sign_step.h"
#include "kernels/update_kernels.h"

namespace bdn {
namespace {

// Returns the factor that brings a sum of differences to the units of gradients: 1 / (W * lr), or 0
// where lr is 0 or so small that it would overflow.
float PerRate(const UpdateFacts& facts) {
  constexpr float kLeastRate = 1e-30f;
  if (facts.learning_rate < kLeastRate) return 0;
  return static_cast<float>(static_cast<double>(facts.inverse_weight) / facts.learning_rate);
}

}  // namespace

SignMomentumRule::SignMomentumRule(const RuleSpec& spec)
    : eta_(spec.option("eta")),
      decay_(spec.option("decay")),
      beta1_(static_cast<float>(spec.option("beta1"))),
      new1_(static_cast<float>(1 - spec.option("beta1"))),
      beta2_(static_cast<float>(spec.option("beta2"))),
      new2_(static_cast<float>(1 - spec.option("beta2"))) {}

void SignMomentumRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  StepSignMomentum({.scale = PerRate(facts),
                    .beta1 = beta1_,
                    .new1 = new1_,
                    .beta2 = beta2_,
                    .new2 = new2_,
                    .signs = MakeSignStep(eta_, decay_, facts.learning_rate)},
                   slice.n, slice.sum, slice.moments[0], slice.weights);
}

NesterovRule::NesterovRule(const RuleSpec& spec)
    : rate_(static_cast<float>(spec.option("lr"))),
      momentum_(static_cast<float>(spec.option("momentum"))) {}

void NesterovRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  StepWithMomentum(
      {.scale = facts.inverse_weight, .momentum = momentum_, .nesterov = true, .rate = rate_},
      slice.sum, slice.n, slice.moments[0], slice.weights);
}

SlowMoRule::SlowMoRule(const RuleSpec& spec)
    : beta_(static_cast<float>(spec.option("beta"))), alpha_(spec.option("alpha")) {}

void SlowMoRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  const auto rate = static_cast<float>(alpha_ * facts.learning_rate);
  StepWithMomentum({.scale = PerRate(facts), .momentum = beta_, .rate = rate}, slice.sum, slice.n,
                   slice.moments[0], slice.weights);
}

void AverageRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  StepWithMomentum({.scale = facts.inverse_weight}, slice.sum, slice.n, nullptr, slice.weights);
}

}  // namespace bdn
