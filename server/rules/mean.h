#ifndef BANDONEON_SERVER_RULES_MEAN_H_
#define BANDONEON_SERVER_RULES_MEAN_H_

#include "server/update_rule.h"

namespace bdn {

// The weighted mean: sum_i(w_i * g_i) / sum_i(w_i), as one multiplication by float(1 / sum w). The
// workers have multiplied by w_i. No moments; no pass over memory.
class MeanRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "mean"; }
  int slots() const override { return 0; }
  bool Supports(DType dtype) const override {
    return dtype == DType::kFloat32 || dtype == DType::kFloat64;
  }
  bool OnlyScales() const override { return true; }
  float Apply(MutableView sum, const RoundFacts& facts, std::span<float> moments) const override;
};

}  // namespace bdn

#endif  // BANDONEON_SERVER_RULES_MEAN_H_
