#include "server/rules/prox_rule.h"

namespace bdn {
namespace {

ProxPenalty PenaltyOf(RuleSpec::Penalty penalty) {
  switch (penalty) {
    case RuleSpec::Penalty::kL1:
      return ProxPenalty::kL1;
    case RuleSpec::Penalty::kScad:
      return ProxPenalty::kScad;
    case RuleSpec::Penalty::kMcp:
      return ProxPenalty::kMcp;
    case RuleSpec::Penalty::kCapped:
      return ProxPenalty::kCapped;
  }
  return ProxPenalty::kL1;
}

}  // namespace

ProxRule::ProxRule(const RuleSpec& spec)
    : penalty_(PenaltyOf(spec.penalty())),
      lambda_(spec.option("lambda")),
      theta_(spec.option("theta")),
      rho_(spec.option("rho")) {}

void ProxRule::Update(const UpdateSlice& slice, const UpdateFacts& facts) const {
  StepProx({.penalty = penalty_,
            .scale = facts.inverse_weight,
            .lambda = lambda_,
            .theta = theta_,
            .pull = rho_ / facts.inverse_weight},
           slice.sum, slice.n, slice.weights);
}

}  // namespace bdn
