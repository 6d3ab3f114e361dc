#include "server/rules/gradient_rules.h"

#include <cmath>

namespace bdn {
namespace {

// base^exponent by squaring: the same bits everywhere, which std::pow does not promise.
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
  const float* sum = slice.sum;
  float* x = slice.weights;
  if (slots() == 0) {
    for (size_t i = 0; i < slice.n; ++i) {
      const float g = sum[i] * facts.inverse_weight + decay_ * x[i];
      x[i] -= facts.learning_rate * g;
    }
    return;
  }
  float* m = slice.moments[0];
  for (size_t i = 0; i < slice.n; ++i) {
    const float g = sum[i] * facts.inverse_weight + decay_ * x[i];
    m[i] = momentum_ * m[i] + g;
    x[i] -= facts.learning_rate * (nesterov_ ? g + momentum_ * m[i] : m[i]);
  }
}

AdamWRule::AdamWRule(const RuleSpec& spec)
    : beta1_(spec.option("beta1")),
      beta2_(spec.option("beta2")),
      decay_(spec.option("decay")),
      eps_(static_cast<float>(spec.option("eps"))) {}

void AdamWRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  const uint64_t t = facts.updates + 1;
  const double lr = facts.learning_rate;
  const auto keep = static_cast<float>(1 - lr * decay_);
  const auto rate = static_cast<float>(lr / (1 - Power(beta1_, t)));
  const auto root = static_cast<float>(std::sqrt(1 - Power(beta2_, t)));
  const auto new1 = static_cast<float>(1 - beta1_);
  const auto old2 = static_cast<float>(beta2_);
  const auto new2 = static_cast<float>(1 - beta2_);
  const float* sum = slice.sum;
  float* x = slice.weights;
  float* m = slice.moments[0];
  float* v = slice.moments[1];
  for (size_t i = 0; i < slice.n; ++i) {
    const float g = sum[i] * facts.inverse_weight;
    m[i] += new1 * (g - m[i]);
    v[i] = old2 * v[i] + new2 * (g * g);
    x[i] = keep * x[i] - rate * (m[i] / (std::sqrt(v[i]) / root + eps_));
  }
}

}  // namespace bdn
