#include "server/rows/row_rule.h"

#include <algorithm>
#include <cmath>

#include "kernels/row_kernels.h"

namespace bdn {
namespace {

// Returns base^exponent by squaring: the bits are the same on every machine, which std::pow does
// not promise.
double PowerOf(double base, uint64_t exponent) {
  double power = 1;
  for (; exponent != 0; exponent >>= 1) {
    if (exponent & 1) power *= base;
    base *= base;
  }
  return power;
}

// Returns whether all may be sums of squares.
bool NotNegative(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return value >= 0; });
}

// x <- x - lr (g + decay x).
class SgdRowRule final : public RowRule {
 public:
  explicit SgdRowRule(const RowRuleSpec& spec) : decay_(static_cast<float>(spec.option(0))) {}

  void Begin(std::span<float> /*moments*/) const override {}
  bool Accepts(std::span<const float> /*moments*/) const override { return true; }
  bool Update(const RowFacts& facts, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> /*moments*/) const override {
    return StepSgdRow({.rate = facts.rate, .decay = decay_}, mean.data(), x.size(), x.data());
  }

 private:
  const float decay_;
};

// v <- v + g^2; x <- x - lr g / (sqrt(v) + eps). Duchi, Hazan, Singer: Adaptive subgradient methods
// (2011), as torch's Adagrad has it.
class AdagradRowRule final : public RowRule {
 public:
  explicit AdagradRowRule(const RowRuleSpec& spec)
      : eps_(static_cast<float>(spec.option(0))),
        initial_(static_cast<float>(spec.option(1))),
        decay_(static_cast<float>(spec.option(2))) {}

  void Begin(std::span<float> moments) const override { std::ranges::fill(moments, initial_); }
  bool Accepts(std::span<const float> moments) const override { return NotNegative(moments); }
  bool Update(const RowFacts& facts, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    const GradientStep step{.rate = facts.rate, .decay = decay_, .eps = eps_};
    return StepAdagradRow(step, mean.data(), x.size(), moments.data(), x.data());
  }

 private:
  const float eps_;
  const float initial_;
  const float decay_;
};

// v <- v + mean(g^2), one v for the row; x <- x - lr g / (sqrt(v) + eps).
class RowwiseAdagradRule final : public RowRule {
 public:
  explicit RowwiseAdagradRule(const RowRuleSpec& spec)
      : eps_(static_cast<float>(spec.option(0))),
        initial_(static_cast<float>(spec.option(1))),
        decay_(static_cast<float>(spec.option(2))) {}

  void Begin(std::span<float> moments) const override { moments[0] = initial_; }
  bool Accepts(std::span<const float> moments) const override { return NotNegative(moments); }
  bool Update(const RowFacts& facts, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    const GradientStep step{.rate = facts.rate, .decay = decay_, .eps = eps_};
    return StepRowwiseAdagradRow(step, mean.data(), x.size(), moments.data(), x.data());
  }

 private:
  const float eps_;
  const float initial_;
  const float decay_;
};

// m <- m + (1 - b1) (g - m); v <- v + (1 - b2) (g^2 - v); x <- (1 - lr decay) x - lr sqrt(1 - b2^t)
// / (1 - b1^t) m / (sqrt(v) + eps), as torch's SparseAdam has it. t counts the table's updates, or
// the row's own.
class AdamWRowRule final : public RowRule {
 public:
  explicit AdamWRowRule(const RowRuleSpec& spec)
      : beta1_(spec.option(0)),
        beta2_(spec.option(1)),
        eps_(static_cast<float>(spec.option(2))),
        decay_(spec.option(3)),
        by_row_(spec.option(4) != 0) {}

  void Begin(std::span<float> moments) const override { std::ranges::fill(moments, 0.0f); }
  bool Accepts(std::span<const float> moments) const override {
    return NotNegative(moments.subspan(moments.size() / 2));
  }
  RowFacts FactsOf(float learning_rate, uint64_t step) const override {
    // The powers take longer than a row does.
    return {.learning_rate = learning_rate,
            .rate = by_row_ ? learning_rate : CorrectedRate(learning_rate, step)};
  }
  bool Update(const RowFacts& facts, uint64_t row_updates, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    const double lr = facts.learning_rate;
    const AdamRowStep step{
        .new1 = static_cast<float>(1 - beta1_),
        .new2 = static_cast<float>(1 - beta2_),
        .keep = static_cast<float>(1 - lr * decay_),
        .rate = by_row_ ? CorrectedRate(facts.learning_rate, row_updates) : facts.rate,
        .eps = eps_};
    return StepAdamRow(step, mean.data(), x.size(), moments.data(), moments.data() + x.size(),
                       x.data());
  }

 private:
  // Returns lr sqrt(1 - b2^t) / (1 - b1^t).
  float CorrectedRate(float learning_rate, uint64_t t) const {
    const double lr = learning_rate;
    return static_cast<float>(lr * std::sqrt(1 - PowerOf(beta2_, t)) / (1 - PowerOf(beta1_, t)));
  }

  const double beta1_;
  const double beta2_;
  const float eps_;
  const double decay_;
  const bool by_row_;
};

// FTRL-proximal by element (McMahan et al.: Ad click prediction, 2013, algorithm 1): n' = n + g^2;
// z <- z + g - (sqrt(n') - sqrt(n)) / alpha x; x = 0 where |z| <= l1, else
// -(z - sign(z) l1) / ((beta + sqrt(n')) / alpha + l2). The learning rate is alpha.
class FtrlRowRule final : public RowRule {
 public:
  explicit FtrlRowRule(const RowRuleSpec& spec)
      : alpha_(static_cast<float>(spec.option(0))),
        beta_(static_cast<float>(spec.option(1))),
        l1_(static_cast<float>(spec.option(2))),
        l2_(static_cast<float>(spec.option(3))) {}

  void Begin(std::span<float> moments) const override { std::ranges::fill(moments, 0.0f); }
  bool Accepts(std::span<const float> moments) const override {
    return NotNegative(moments.subspan(moments.size() / 2));
  }
  bool Update(const RowFacts& /*facts*/, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    const FtrlRowStep step{.alpha = alpha_, .beta = beta_, .l1 = l1_, .l2 = l2_};
    return StepFtrlRow(step, mean.data(), x.size(), moments.data(), moments.data() + x.size(),
                       x.data());
  }

 private:
  const float alpha_;
  const float beta_;
  const float l1_;
  const float l2_;
};

}  // namespace

std::unique_ptr<const RowRule> MakeRowRule(const RowRuleSpec& spec) {
  switch (spec.kind()) {
    case RowRuleSpec::Kind::kMean:
      return nullptr;
    case RowRuleSpec::Kind::kSgd:
      return std::make_unique<SgdRowRule>(spec);
    case RowRuleSpec::Kind::kAdagrad:
      return std::make_unique<AdagradRowRule>(spec);
    case RowRuleSpec::Kind::kRowwiseAdagrad:
      return std::make_unique<RowwiseAdagradRule>(spec);
    case RowRuleSpec::Kind::kAdamW:
      return std::make_unique<AdamWRowRule>(spec);
    case RowRuleSpec::Kind::kFtrl:
      return std::make_unique<FtrlRowRule>(spec);
  }
  return nullptr;
}

}  // namespace bdn
