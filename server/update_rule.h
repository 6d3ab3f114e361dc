#ifndef BANDONEON_SERVER_UPDATE_RULE_H_
#define BANDONEON_SERVER_UPDATE_RULE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "link/rule_spec.h"

namespace bdn {

// A run of elements that a rule updates. The arrays are float32[n] and do not overlap.
struct UpdateSlice {
  static constexpr size_t kMaxSlots = 2;

  float* sum = nullptr;      // of the contributions; the rule may use it as scratch
  float* weights = nullptr;  // x
  std::array<float*, kMaxSlots> moments{};
  size_t n = 0;
};

// What a closed round tells the rule.
struct UpdateFacts {
  float inverse_weight = 1;  // sum times this is the weighted mean
  float learning_rate = 0;   // the same at every contributor
  uint64_t updates = 0;      // of these elements, before this one
};

// How servers that hold the weights step on an aggregate. Stateless, const, thread-safe;
// elementwise, in float32 with every operation rounded on its own and without transcendental
// functions, so that any split of the work gives the same bits everywhere.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Moments an element, at most UpdateSlice::kMaxSlots; they start at 0.
  virtual int slots() const = 0;

  // Steps. A rule that steps by signs (RuleSpec::steps_by_signs) leaves these in the sum. REQUIRES:
  // everything finite, learning_rate >= 0.
  virtual void Update(const UpdateSlice& slice, const UpdateFacts& facts) const = 0;
};

// Null for `mean`, where the aggregate itself is the answer.
std::unique_ptr<const UpdateRule> MakeUpdateRule(const RuleSpec& spec);

}  // namespace bdn

#endif  // BANDONEON_SERVER_UPDATE_RULE_H_
