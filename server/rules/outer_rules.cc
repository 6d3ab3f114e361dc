#include "server/rules/outer_rules.h"

#include "compressors/memory/sign_step.h"

namespace bdn {
namespace {

// What brings a sum of differences to the units of gradients: 1 / (W * lr), or 0 where lr is 0 or
// so small that it would overflow.
float PerRate(const UpdateFacts& facts) {
  constexpr float kLeastRate = 1e-30f;
  if (facts.learning_rate < kLeastRate) return 0;
  return static_cast<float>(static_cast<double>(facts.inverse_weight) / facts.learning_rate);
}

float Sign(float value) { return static_cast<float>(value > 0) - static_cast<float>(value < 0); }

}  // namespace

SignMomentumRule::SignMomentumRule(const RuleSpec& spec)
    : eta_(spec.option("eta")),
      decay_(spec.option("decay")),
      beta1_(static_cast<float>(spec.option("beta1"))),
      new1_(static_cast<float>(1 - spec.option("beta1"))),
      beta2_(static_cast<float>(spec.option("beta2"))),
      new2_(static_cast<float>(1 - spec.option("beta2"))) {}

void SignMomentumRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  const float per_rate = PerRate(facts);
  float* sum = slice.sum;
  float* m = slice.moments[0];
  for (size_t i = 0; i < slice.n; ++i) {
    const float d = sum[i] * per_rate;
    const float u = beta1_ * m[i] + new1_ * d;
    m[i] = beta2_ * m[i] + new2_ * d;
    sum[i] = Sign(u);
  }
  ApplySigns(MakeSignStep(eta_, decay_, facts.learning_rate), sum, slice.n, slice.weights);
}

NesterovRule::NesterovRule(const RuleSpec& spec)
    : rate_(static_cast<float>(spec.option("lr"))),
      momentum_(static_cast<float>(spec.option("momentum"))) {}

void NesterovRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  const float* sum = slice.sum;
  float* x = slice.weights;
  float* m = slice.moments[0];
  for (size_t i = 0; i < slice.n; ++i) {
    const float d = sum[i] * facts.inverse_weight;
    m[i] = momentum_ * m[i] + d;
    x[i] -= rate_ * (d + momentum_ * m[i]);
  }
}

SlowMoRule::SlowMoRule(const RuleSpec& spec)
    : beta_(static_cast<float>(spec.option("beta"))), alpha_(spec.option("alpha")) {}

void SlowMoRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  const float per_rate = PerRate(facts);
  const auto rate = static_cast<float>(alpha_ * facts.learning_rate);
  const float* sum = slice.sum;
  float* x = slice.weights;
  float* m = slice.moments[0];
  for (size_t i = 0; i < slice.n; ++i) {
    m[i] = beta_ * m[i] + sum[i] * per_rate;
    x[i] -= rate * m[i];
  }
}

void AverageRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  const float* sum = slice.sum;
  float* x = slice.weights;
  for (size_t i = 0; i < slice.n; ++i) x[i] -= sum[i] * facts.inverse_weight;
}

}  // namespace bdn
