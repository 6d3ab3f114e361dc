#include "server/state_parts.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "common/wire/message.h"

namespace bdn {
namespace {

int SlotOf(StatePart moment) {
  return static_cast<int>(moment) - static_cast<int>(StatePart::kMoment0);
}

// The position of a part of a segment: an array of `arrays` times n elements, and the first
// element.
struct PartPlace {
  std::vector<float> StateParts::*array;
  size_t arrays = 1;
  size_t begin = 0;
};

// Returns the position of a part. REQUIRES: HasPart, and the part is of floats, but not the
// weights.
PartPlace PlaceOf(const KeyPlan& plan, const StateParts& parts, StatePart part, size_t segment) {
  const size_t offset = plan.codecs.pull->segment_offset(segment);
  switch (part) {
    case StatePart::kReplica:
      return {&StateParts::replica, 1, offset};
    case StatePart::kResidual:
      return {&StateParts::residual, 1, offset};
    default:
      return {&StateParts::moments, NumMoments(plan, parts),
              SlotOf(part) * plan.codecs.pull->num_elements() + offset};
  }
}

// Returns the elements of a part for writing; first sizes the array if it was not used yet.
std::span<float> FindPart(const KeyPlan& plan, StatePart part, size_t segment, StateParts* parts) {
  const SegmentedCodec& layout = *plan.codecs.pull;
  const size_t n = layout.segment_elements(segment);
  if (part == StatePart::kWeights) {
    parts->weights.Resize(layout.num_elements());
    return {parts->weights.Mutable() + layout.segment_offset(segment), n};
  }
  const PartPlace place = PlaceOf(plan, *parts, part, segment);
  std::vector<float>& array = parts->*place.array;
  array.resize(layout.num_elements() * place.arrays);
  return std::span(array).subspan(place.begin, n);
}

absl::StatusOr<std::shared_ptr<const RuleInForce>> ReadRule(const KeyPlan& plan, ByteSpan payload) {
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  BDN_ASSIGN_OR_RETURN(RuleSpec spec, RuleSpec::Parse(text));
  if (spec.kind() != plan.rule_spec.kind()) {
    return InvalidArgument("'%s', where %s was declared: its numbers may change, not its kind",
                           spec.text(), plan.rule_spec.text());
  }
  auto rule = MakeUpdateRule(spec);
  return std::make_shared<const RuleInForce>(RuleInForce{std::move(spec), std::move(rule)});
}

absl::Status CheckFloats(ByteSpan payload, size_t elements) {
  if (payload.size() != elements * sizeof(float)) {
    return InvalidArgument("%d bytes for %d elements", payload.size(), elements);
  }
  for (size_t i = 0; i < elements; ++i) {
    const auto value = LoadLittle<float>(payload, i * sizeof(float));
    if (!std::isfinite(value)) return InvalidArgument("element %d is %g", i, value);
  }
  return absl::OkStatus();
}

}  // namespace

StateParts MakeStateParts(const KeyPlan& plan) {
  StateParts parts;
  parts.segments.resize(plan.codecs.pull->num_segments());
  return parts;
}

const UpdateRule& RuleOf(const KeyPlan& plan, const StateParts& parts) {
  return parts.rule != nullptr ? *parts.rule->rule : *plan.rule;
}

size_t NumMoments(const KeyPlan& plan, const StateParts& parts) {
  // A rule of the same kind may use fewer moments than the one before (sgd without momentum), whose
  // moments stay readable for checkpoints.
  const size_t used = parts.moments.size() / std::max<size_t>(1, plan.codecs.pull->num_elements());
  return std::max<size_t>(used, RuleOf(plan, parts).slots());
}

bool HasPart(const KeyPlan& plan, const StateParts& parts, StatePart part) {
  switch (part) {
    case StatePart::kNone:
    case StatePart::kSnapshot:
    case StatePart::kReply:
    case StatePart::kPosition:
    case StatePart::kRows:
    case StatePart::kRecords:
      return false;
    case StatePart::kWeights:
      return plan.rule != nullptr;
    case StatePart::kReplica:
      return plan.codecs.reply == ReplyKind::kDelta;
    case StatePart::kResidual:
      return plan.codecs.pull_feedback.on;
    case StatePart::kCounters:
      return true;
    case StatePart::kMoment0:
    case StatePart::kMoment1:
      return plan.rule != nullptr && static_cast<size_t>(SlotOf(part)) < NumMoments(plan, parts);
    case StatePart::kRule:
      // Workers that follow signs compute the step by the declared rule, which they would go on to
      // use.
      return plan.rule != nullptr && !plan.rule_spec.steps_by_signs();
  }
  return false;
}

absl::Status SetPart(const KeyPlan& plan, StatePart part, size_t segment, ByteSpan payload,
                     StateParts* parts) {
  SegmentState& counts = parts->segments[segment];
  if (part == StatePart::kCounters) {
    BDN_ASSIGN_OR_RETURN(const StateCounters counters, DecodeCounters(payload));
    counts.updates = counters.updates;
    parts->previous_learning_rate = counters.previous_learning_rate;
    return absl::OkStatus();
  }
  if (part == StatePart::kRule) {
    BDN_ASSIGN_OR_RETURN(parts->rule, ReadRule(plan, payload));
    return absl::OkStatus();
  }
  BDN_RETURN_IF_ERROR(CheckFloats(payload, plan.codecs.pull->segment_elements(segment)));
  const std::span<float> values = FindPart(plan, part, segment, parts);
  DecodeFloats(payload, values);
  if (part == StatePart::kWeights) {
    counts.has_weights = true;
    // The next delta is made against the replica, which all workers set to these weights.
    if (HasPart(plan, *parts, StatePart::kReplica)) {
      std::copy(values.begin(), values.end(),
                FindPart(plan, StatePart::kReplica, segment, parts).begin());
    }
  }
  return absl::OkStatus();
}

Buffer EncodePart(const KeyPlan& plan, StatePart part, size_t segment, const StateParts& parts) {
  if (part == StatePart::kCounters) {
    return EncodeCounters({parts.segments[segment].updates, parts.previous_learning_rate});
  }
  if (part == StatePart::kRule) {
    const RuleSpec& spec = parts.rule == nullptr ? plan.rule_spec : parts.rule->spec;
    const std::string text = spec.text();
    return Buffer::CopyOf(std::as_bytes(std::span(text)));
  }
  const SegmentedCodec& layout = *plan.codecs.pull;
  const size_t n = layout.segment_elements(segment);
  if (part == StatePart::kWeights) {
    if (parts.weights.empty()) return EncodeFloats(std::vector<float>(n));
    return parts.weights.bytes().Slice(layout.segment_offset(segment) * sizeof(float),
                                       n * sizeof(float));
  }
  const PartPlace place = PlaceOf(plan, parts, part, segment);
  const std::vector<float>& array = parts.*place.array;
  if (array.empty()) return EncodeFloats(std::vector<float>(n));
  return EncodeFloats(std::span(array).subspan(place.begin, n));
}

}  // namespace bdn
