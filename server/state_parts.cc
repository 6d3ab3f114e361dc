#include "server/state_parts.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "common/wire/message.h"

namespace bdn {
namespace {

int SlotOf(StatePart moment) {
  return static_cast<int>(moment) - static_cast<int>(StatePart::kMoment0);
}

// Where a part of a segment lies, to be written to. REQUIRES: HasPart, and it is one of floats.
std::span<float> FindPart(const KeyPlan& plan, StatePart part, size_t segment, StateParts* parts) {
  const SegmentedCodec& layout = *plan.codecs.pull;
  const size_t n = layout.num_elements();
  const auto part_of = [&](float* array) {
    return std::span(array + layout.segment_offset(segment), layout.segment_elements(segment));
  };
  const auto sized = [](std::vector<float>& array, size_t size) {
    array.resize(size);
    return array.data();
  };
  switch (part) {
    case StatePart::kWeights:
      parts->weights.Resize(n);
      return part_of(parts->weights.Mutable());
    case StatePart::kReplica:
      return part_of(sized(parts->replica, n));
    case StatePart::kResidual:
      return part_of(sized(parts->residual, n));
    default:
      return part_of(sized(parts->moments, n * plan.rule->slots()) + SlotOf(part) * n);
  }
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

bool HasPart(const KeyPlan& plan, StatePart part) {
  switch (part) {
    case StatePart::kNone:
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
      return plan.rule != nullptr && SlotOf(part) < plan.rule->slots();
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
  BDN_RETURN_IF_ERROR(CheckFloats(payload, plan.codecs.pull->segment_elements(segment)));
  const std::span<float> values = FindPart(plan, part, segment, parts);
  DecodeFloats(payload, values);
  if (part == StatePart::kWeights) {
    counts.has_weights = true;
    if (HasPart(plan, StatePart::kReplica)) {
      std::copy(values.begin(), values.end(),
                FindPart(plan, StatePart::kReplica, segment, parts).begin());
    }
  }
  return absl::OkStatus();
}

Buffer EncodePart(const KeyPlan& plan, StatePart part, size_t segment, StateParts* parts) {
  if (part == StatePart::kCounters) {
    return EncodeCounters({parts->segments[segment].updates, parts->previous_learning_rate});
  }
  if (part != StatePart::kWeights) return EncodeFloats(FindPart(plan, part, segment, parts));
  const SegmentedCodec& layout = *plan.codecs.pull;
  parts->weights.Resize(layout.num_elements());
  return parts->weights.bytes().Slice(layout.segment_offset(segment) * sizeof(float),
                                      layout.segment_elements(segment) * sizeof(float));
}

}  // namespace bdn
