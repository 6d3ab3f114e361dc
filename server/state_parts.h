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

// The counters of one segment at a server.
struct SegmentState {
  uint64_t updates = 0;
  bool has_weights = false;  // its weights were set

  bool operator==(const SegmentState&) const = default;
};

// An update rule that was set in place of the declared one. Immutable.
struct RuleInForce {
  RuleSpec spec;
  std::unique_ptr<const UpdateRule> rule;
};

// The state of a dense key that a server keeps from one round to the next: rounds change it, an
// init sets a part of it, and a fetch reads one (StatePart). An array is empty until it is first
// used.
struct StateParts {
  std::vector<float> residual;       // float32[n]: the residual of the replies' error feedback
  float previous_learning_rate = 0;  // of the step that left the residual; 0: none yet

  // The following are used only with a rule, where the server holds the weights.
  SharedFloats weights;        // float32[n]; a reply of whole weights is this very block
  std::vector<float> replica;  // float32[n] where replies are deltas
  std::vector<float> moments;  // float32[slots][n]
  Step weights_step = 0;       // the step that left the weights as they are
  std::shared_ptr<const RuleInForce> rule;  // null: the declared one

  std::vector<SegmentState> segments;  // one for each segment of the plan

  bool operator==(const StateParts&) const = default;
};

// Returns the state of a key that was just declared.
StateParts MakeStateParts(const KeyPlan& plan);

// Returns the rule of the next round. REQUIRES: the plan has one.
const UpdateRule& RuleOf(const KeyPlan& plan, const StateParts& parts);

// Returns how many arrays of moments there are: those of the rule in force and those that an
// earlier rule has left, whichever are more.
size_t NumMoments(const KeyPlan& plan, const StateParts& parts);

// Returns whether a key with this rule and these codecs has the part.
bool HasPart(const KeyPlan& plan, const StateParts& parts, StatePart part);

// Sets a part of one segment from the payload of an init. Weights also become the replica; a rule
// is set for all segments. InvalidArgument: the payload does not have the segment's size, is not
// finite, or is no rule of the declared kind; then nothing has changed. REQUIRES: HasPart.
absl::Status SetPart(const KeyPlan& plan, StatePart part, size_t segment, ByteSpan payload,
                     StateParts* parts);

// Returns the payload of a value frame: a part of one segment as it is now, zeros where it was not
// used yet. Of weights it is the block that holds them, without a copy. REQUIRES: HasPart.
Buffer EncodePart(const KeyPlan& plan, StatePart part, size_t segment, const StateParts& parts);

}  // namespace bdn

#endif  // BANDONEON_SERVER_STATE_PARTS_H_
