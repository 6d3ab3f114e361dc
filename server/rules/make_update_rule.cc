#include "server/rules/gradient_rules.h"
#include "server/rules/outer_rules.h"
#include "server/rules/prox_rule.h"
#include "server/update_rule.h"

namespace bdn {

std::unique_ptr<const UpdateRule> MakeUpdateRule(const RuleSpec& spec) {
  switch (spec.kind()) {
    case RuleSpec::Kind::kMean:
      return nullptr;
    case RuleSpec::Kind::kSgd:
      return std::make_unique<SgdRule>(spec);
    case RuleSpec::Kind::kAdamW:
      return std::make_unique<AdamWRule>(spec);
    case RuleSpec::Kind::kSignMomentum:
      return std::make_unique<SignMomentumRule>(spec);
    case RuleSpec::Kind::kNesterov:
      return std::make_unique<NesterovRule>(spec);
    case RuleSpec::Kind::kSlowMo:
      return std::make_unique<SlowMoRule>(spec);
    case RuleSpec::Kind::kAverage:
      return std::make_unique<AverageRule>();
    case RuleSpec::Kind::kProx:
      return std::make_unique<ProxRule>(spec);
  }
  return nullptr;
}

}  // namespace bdn
