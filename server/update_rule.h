#ifndef BANDONEON_SERVER_UPDATE_RULE_H_
#define BANDONEON_SERVER_UPDATE_RULE_H_

#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/base/ids.h"

namespace bdn {

// What a closed round tells the rule.
struct RoundFacts {
  Step step = 0;
  double total_weight = 0;  // of all contributions, absent ones too; > 0
  float learning_rate = 0;  // the same at every contributor
};

// What a server makes of a sum. Stateless, const, thread-safe; elementwise, so that any split of
// the work gives the same bits. Moments are float32[n * slots()] owned by the shard.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string_view name() const = 0;
  virtual int slots() const = 0;
  virtual bool Supports(DType dtype) const = 0;
  // Whether Apply leaves the sum alone and only returns a factor: then it may also be given an
  // empty one, and sums that were never decoded can be scaled by it.
  virtual bool OnlyScales() const { return false; }

  // Turns the contributions' sum (rank order, from +0.0) into what is sent, in place, up to the
  // factor it returns: the encoder multiplies by that on its way, so that a rule that only scales
  // needs no pass of its own. REQUIRES: Supports(sum.dtype), moments.size() == sum.n * slots().
  virtual float Apply(MutableView sum, const RoundFacts& facts, std::span<float> moments) const = 0;
};

// NotFound names the rule that does not exist and those that do.
absl::StatusOr<std::unique_ptr<const UpdateRule>> MakeUpdateRule(std::string_view name);

}  // namespace bdn

#endif  // BANDONEON_SERVER_UPDATE_RULE_H_
