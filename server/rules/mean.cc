#include "server/rules/mean.h"

namespace bdn {

float MeanRule::Apply(MutableView, const RoundFacts& facts, std::span<float>) const {
  return static_cast<float>(1.0 / facts.total_weight);
}

}  // namespace bdn
