#include "server/key_estimate.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"

namespace bdn {
namespace {

bool IsFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// Returns whether workers keep a copy of the key's whole weights beside its replies, each of which
// may lack those of some segments.
bool HasCopy(const KeyPlan& plan) {
  return plan.codecs.reply == ReplyKind::kWeights && plan.entry.segments.size() > 1;
}

// Sets the weights of the segments that the last reply of whole weights has. The others are those
// of the snapshot, or without one of the worker's copy.
absl::Status TakeWholeWeights(const KeyPlan& plan, const GivenReply& given, StateParts* parts) {
  const bool has_copy = given.replica.size() == plan.entry.elements * sizeof(float);
  if (!given.replica.empty() && !(has_copy && HasCopy(plan))) {
    return InvalidArgument("a copy of %d bytes for %d elements", given.replica.size(),
                           plan.entry.elements);
  }
  const SegmentedCodec& codec = plan.codecs.Pull(given.payload_step);
  float* const weights = parts->weights.Mutable();
  SegmentedCodec::Segments segments(codec, given.payload);
  for (size_t i = 0; i < codec.num_segments(); ++i) {
    const std::optional<ByteSpan> payload = segments.Next();
    const size_t n = codec.segment_elements(i);
    const std::span<float> out(weights + codec.segment_offset(i), n);
    if (payload.has_value()) {
      codec.codec().Decode(*payload, 1.0f, {out.data(), DType::kFloat32, n});
      if (!IsFinite(out)) return InvalidArgument("its weights are not finite");
      parts->segments[i].has_weights = true;
    } else if (!parts->segments[i].has_weights) {
      // No worker had a gradient of it in that step, so the reply does not tell it.
      if (has_copy) {
        DecodeFloats(
            given.replica.subspan(codec.segment_offset(i) * sizeof(float), n * sizeof(float)), out);
      }
      if (!has_copy || !IsFinite(out)) {
        return InvalidArgument("it lacks the weights of segment %d", i);
      }
      parts->segments[i].has_weights = true;
    }
  }
  return absl::OkStatus();
}

absl::Status TakeWeights(const KeyPlan& plan, const GivenReply& given, StateParts* parts) {
  const size_t n = plan.entry.elements;
  if (given.payload_step == 0) {
    // No step has changed those that were set.
    const bool are_set = std::ranges::all_of(
        parts->segments, [](const SegmentState& segment) { return segment.has_weights; });
    return are_set ? absl::OkStatus() : InvalidArgument("it has no weights");
  }
  parts->weights.Resize(n);
  parts->weights_step = given.payload_step;
  if (!plan.codecs.keeps_replica()) return TakeWholeWeights(plan, given, parts);
  if (given.replica.size() != n * sizeof(float)) {
    return InvalidArgument("a replica of %d bytes for %d elements", given.replica.size(), n);
  }
  const std::span<float> weights(parts->weights.Mutable(), n);
  DecodeFloats(given.replica, weights);
  if (!IsFinite(weights)) return InvalidArgument("its replica is not finite");
  if (plan.codecs.reply == ReplyKind::kDelta) {
    parts->replica.assign(weights.begin(), weights.end());
  }
  for (SegmentState& segment : parts->segments) segment.has_weights = true;
  return absl::OkStatus();
}

}  // namespace

uint64_t MaxGivenBytes(const KeyPlan& plan) {
  if (plan.entry.kind != KeyKind::kDense) return 0;
  const uint64_t replica = plan.codecs.keeps_replica() || HasCopy(plan)
                               ? plan.entry.elements * sizeof(float)
                               : uint64_t{0};
  return kGivenReplyRoom + plan.MaxPayloadBytes() + replica;
}

absl::Status CheckGiven(const KeyPlan& plan, const GivenReply& given) {
  const bool has_payload = !given.payload.empty();
  if (has_payload != (given.payload_step > 0)) {
    return InvalidArgument("%d bytes of step %d", given.payload.size(), given.payload_step);
  }
  constexpr uint8_t kKnown = kFlagAbsent | kFlagNonFinite | kFlagUncompressed;
  if ((given.flags & ~kKnown) != 0) return InvalidArgument("flags 0x%02x", given.flags);
  if (given.step > 0 && HasPayload(given.flags) && given.payload_step != given.step) {
    return InvalidArgument("a payload of step %d for step %d", given.payload_step, given.step);
  }
  if (!has_payload) return absl::OkStatus();
  const SegmentedCodec& codec = plan.codecs.Pull(given.payload_step);
  if (given.codec != static_cast<uint8_t>(codec.codec().id())) {
    return InvalidArgument("codec %d, where %s was declared", given.codec, codec.codec().spec());
  }
  return codec.Validate(given.payload);
}

absl::Status EstimateFrom(const KeyPlan& plan, const GivenReply& given, DenseState* state) {
  BDN_RETURN_IF_ERROR(CheckGiven(plan, given));
  if (plan.rule != nullptr) BDN_RETURN_IF_ERROR(TakeWeights(plan, given, &state->parts));
  state->parts.residual.clear();
  return absl::OkStatus();
}

}  // namespace bdn
