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

  float* sum = nullptr;      // of the contributions; the rule may use it as scratch memory
  float* weights = nullptr;  // the weights x
  std::array<float*, kMaxSlots> moments{};
  size_t n = 0;
};

// The facts of a closed round that a rule needs.
struct UpdateFacts {
  float inverse_weight = 1;  // sum times this is the weighted mean
  float learning_rate = 0;   // the same at every contributor
  uint64_t updates = 0;      // of these elements, before this one
};

// An algorithm by which servers that hold the weights update them from an aggregate. Stateless,
// const, thread-safe. It works element by element in float32, with every operation rounded on its
// own and without transcendental functions, so that any split of the work gives the same bits on
// every machine.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // Returns the number of moments for each element, at most UpdateSlice::kMaxSlots. They start at
  // 0.
  virtual int slots() const = 0;

  // Makes one step. A rule that steps by signs (RuleSpec::steps_by_signs) leaves the signs in the
  // sum. REQUIRES: everything is finite, learning_rate >= 0.
  virtual void Update(const UpdateSlice& slice, const UpdateFacts& facts) const = 0;
};

// Makes the rule of a spec. Null for `mean`, where the aggregate itself is the answer.
std::unique_ptr<const UpdateRule> MakeUpdateRule(const RuleSpec& spec);

}  // namespace bdn

#endif  // BANDONEON_SERVER_UPDATE_RULE_H_
