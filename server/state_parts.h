#ifndef BANDONEON_SERVER_STATE_PARTS_H_
#define BANDONEON_SERVER_STATE_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/buffer.h"
#include "common/wire/frame.h"
#include "server/key_plan.h"
#include "server/shared_floats.h"

namespace bdn {

// What a server counts of one segment, and whether it has its weights.
struct SegmentState {
  uint64_t updates = 0;
  bool has_weights = false;

  bool operator==(const SegmentState&) const = default;
};

// An update rule that was set in the place of the declared one. Immutable.
struct RuleInForce {
  RuleSpec spec;
  std::unique_ptr<const UpdateRule> rule;
};

// What a server holds of a dense key from one round to the next: what the rounds change, and what
// an init sets and a fetch is told (StatePart). An array is empty until it is first used.
struct StateParts {
  std::vector<float> residual;       // float32[n]: what the replies' error feedback keeps
  float previous_learning_rate = 0;  // of the step that left the residual; 0: none yet

  // Of rules that hold the weights.
  SharedFloats weights;        // float32[n]; a reply of whole weights is this very block
  std::vector<float> replica;  // float32[n] where replies are deltas
  std::vector<float> moments;  // float32[slots][n]
  Step weights_step = 0;       // the step that left the weights as they are
  std::shared_ptr<const RuleInForce> rule;  // null: the declared one

  std::vector<SegmentState> segments;  // as the plan's

  bool operator==(const StateParts&) const = default;
};

StateParts MakeStateParts(const KeyPlan& plan);

// The rule of the next round. REQUIRES: the plan has one.
const UpdateRule& RuleOf(const KeyPlan& plan, const StateParts& parts);

// Arrays of moments: those of the rule in force, and those that an earlier one has left.
size_t NumMoments(const KeyPlan& plan, const StateParts& parts);

// Whether keys of this rule and these codecs have the part.
bool HasPart(const KeyPlan& plan, const StateParts& parts, StatePart part);

// Takes the payload of an init: a part of one segment; weights become the replica as well, and a rule is
// that of all segments. InvalidArgument: it is not of the segment's size, or not finite, or no rule of the
// declared kind; then nothing has changed. REQUIRES: HasPart.
absl::Status SetPart(const KeyPlan& plan, StatePart part, size_t segment, ByteSpan payload,
                     StateParts* parts);

// The payload of a value: a part of one segment as it is now, zeros where it was not used yet; of
// weights the block they lie in, without a copy. REQUIRES: HasPart.
Buffer EncodePart(const KeyPlan& plan, StatePart part, size_t segment, const StateParts& parts);

}  // namespace bdn

#endif  // BANDONEON_SERVER_STATE_PARTS_H_
