#include "server/rows/row_rule.h"

#include <algorithm>
#include <cmath>

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
  void Update(const RowFacts& facts, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> /*moments*/) const override {
    for (size_t i = 0; i < x.size(); ++i) {
      const float g = decay_ == 0 ? mean[i] : mean[i] + decay_ * x[i];
      x[i] -= facts.learning_rate * g;
    }
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
  void Update(const RowFacts& facts, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    for (size_t i = 0; i < x.size(); ++i) {
      const float g = decay_ == 0 ? mean[i] : mean[i] + decay_ * x[i];
      moments[i] += g * g;
      x[i] -= facts.learning_rate * (g / (std::sqrt(moments[i]) + eps_));
    }
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
  void Update(const RowFacts& facts, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    const auto gradient = [&](size_t i) { return decay_ == 0 ? mean[i] : mean[i] + decay_ * x[i]; };
    // In order and in float64, so that the bits do not depend on how a machine adds.
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double g = gradient(i);
      squares += g * g;
    }
    moments[0] += static_cast<float>(squares / static_cast<double>(x.size()));
    const float root = std::sqrt(moments[0]) + eps_;
    for (size_t i = 0; i < x.size(); ++i) x[i] -= facts.learning_rate * (gradient(i) / root);
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
  void Update(const RowFacts& facts, uint64_t row_updates, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    const uint64_t t = by_row_ ? row_updates : facts.step;
    const double lr = facts.learning_rate;
    const auto rate =
        static_cast<float>(lr * std::sqrt(1 - PowerOf(beta2_, t)) / (1 - PowerOf(beta1_, t)));
    const auto keep = static_cast<float>(1 - lr * decay_);
    const auto new1 = static_cast<float>(1 - beta1_);
    const auto new2 = static_cast<float>(1 - beta2_);
    float* const m = moments.data();
    float* const v = moments.data() + x.size();
    for (size_t i = 0; i < x.size(); ++i) {
      const float g = mean[i];
      m[i] += (g - m[i]) * new1;
      v[i] += (g * g - v[i]) * new2;
      const float kept = decay_ == 0 ? x[i] : keep * x[i];
      x[i] = kept - rate * (m[i] / (std::sqrt(v[i]) + eps_));
    }
  }

 private:
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
  void Update(const RowFacts& /*facts*/, uint64_t /*row_updates*/, std::span<const float> mean,
              std::span<float> x, std::span<float> moments) const override {
    float* const z = moments.data();
    float* const n = moments.data() + x.size();
    for (size_t i = 0; i < x.size(); ++i) {
      const float g = mean[i];
      const float root_before = std::sqrt(n[i]);
      n[i] += g * g;
      const float root = std::sqrt(n[i]);
      z[i] += g - (root - root_before) / alpha_ * x[i];
      const float l1 = z[i] < 0 ? -l1_ : l1_;
      x[i] = std::abs(z[i]) <= l1_ ? 0.0f : -(z[i] - l1) / ((beta_ + root) / alpha_ + l2_);
    }
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
