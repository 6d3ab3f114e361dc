#include "server/reply_encoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "common/wire/frame.h"
#include "compressors/memory/error_feedback.h"

namespace bdn {
namespace {

// The encoder of one round that closes with payloads.
class ReplyEncoder {
 public:
  ReplyEncoder(const ReplyContext& context, const KeyPlan& plan, Round* round, StateParts* parts);

  // Encodes the weighted mean, with error feedback where declared.
  Reply EncodeMean();
  // Encodes the mean where payloads add up as they are: nothing is decoded, and no array as long as
  // the tensor is touched.
  absl::StatusOr<Reply> AddUndecoded();
  // Makes the rule's step on the weights, then encodes what workers need to follow it.
  absl::StatusOr<Reply> EncodeStep();

 private:
  absl::Status CheckMayStep() const;
  void StepWeights(MutableView sum);

  // Each encodes a payload from another source. Returns the bytes used, or that an input is not
  // finite.
  absl::StatusOr<size_t> EncodePlain(ConstView x, float scale, MutableByteSpan out) const;
  absl::StatusOr<size_t> EncodeWithFeedback(ConstView sum, MutableByteSpan out);
  absl::StatusOr<size_t> EncodeDelta(MutableByteSpan out);
  bool IsMonitored() const { return context_.monitor != nullptr && context_.monitor->IsDue(step_); }
  absl::StatusOr<Buffer> EncodeWeights(const float* signs);
  absl::StatusOr<size_t> EncodeWholeWeights(MutableByteSpan out);

  template <typename Measure>
  void Monitor(ByteSpan payload, const Measure& measure) const;
  MutableView Sum();
  // Makes a payload that `encode` writes; that returns the bytes used.
  template <typename Encode>
  absl::StatusOr<Buffer> MakePayload(const Encode& encode) const;
  Draw ReplyDraw() const;
  static Reply NonFinite() { return {.flags = kFlagNonFinite}; }

  const ReplyContext& context_;
  const KeyPlan& plan_;
  const SegmentedCodec& pull_;
  const Step step_;
  const float learning_rate_;
  const float inverse_weight_;  // the sum times this is the mean
  StateParts& parts_;
  PrefixSum& sum_;
  const std::vector<uint8_t>& present_;  // by segment: whether any worker had it
  std::vector<float> weights_before_;    // of a step whose delta is monitored; else empty
};

ReplyEncoder::ReplyEncoder(const ReplyContext& context, const KeyPlan& plan, Round* round,
                           StateParts* parts)
    : context_(context),
      plan_(plan),
      pull_(plan.codecs.Pull(round->step())),
      step_(round->step()),
      learning_rate_(round->learning_rate()),
      inverse_weight_(static_cast<float>(1.0 / round->total_weight())),
      parts_(*parts),
      sum_(round->sum()),
      present_(sum_.present()) {}

template <typename Encode>
absl::StatusOr<Buffer> ReplyEncoder::MakePayload(const Encode& encode) const {
  const size_t most = pull_.MaxEncodedBytes();
  const bool pooled = context_.pool != nullptr;
  const Buffer payload = pooled ? context_.pool->Get(most) : Buffer::Allocate(most);
  const absl::StatusOr<size_t> used = encode(payload.mutable_span());
  if (!used.ok()) return used.status();
  // The payload is kept until the next step, so it gives back the room that it did not need.
  return pooled ? context_.pool->Fit(payload.Prefix(*used), most) : payload.Prefix(*used);
}

MutableView ReplyEncoder::Sum() {
  const MutableView sum = sum_.Finish({plan_, step_, context_.pool}, context_.scratch);
  // Items were counted as pushes came.
  if (context_.laps != nullptr) context_.laps->End(Stage::kSum, 0, 0);
  return sum;
}

Reply ReplyEncoder::EncodeMean() {
  const MutableView sum = Sum();
  // Even with a lossless codec in this step of a schedule: a residual that an earlier, lossy period
  // left must go with the next reply.
  const bool has_feedback =
      plan_.codecs.pull_feedback.on && (!pull_.codec().lossless() || !parts_.residual.empty());
  absl::StatusOr<Buffer> payload = MakePayload([&](MutableByteSpan out) {
    return has_feedback ? EncodeWithFeedback(sum, out) : EncodePlain(sum, inverse_weight_, out);
  });
  if (!payload.ok()) return NonFinite();
  return {.payload = *std::move(payload)};
}

absl::StatusOr<Reply> ReplyEncoder::AddUndecoded() {
  absl::StatusOr<Buffer> payload = MakePayload([&](MutableByteSpan out) {
    return sum_.FinishEncoded({plan_, step_, context_.pool}, inverse_weight_, out);
  });
  if (absl::IsInvalidArgument(payload.status())) return NonFinite();
  if (!payload.ok()) return payload.status();
  return Reply{.payload = *std::move(payload)};
}

absl::StatusOr<Reply> ReplyEncoder::EncodeStep() {
  if (!(learning_rate_ >= 0)) {
    return InvalidArgument("tensor '%s': learning rate %g is below 0", plan_.name, learning_rate_);
  }
  const MutableView sum = Sum();
  // Both checks come before StepWeights: from there on the weights and moments are changed, and
  // nothing takes that back.
  BDN_RETURN_IF_ERROR(CheckMayStep());
  if (!AllFinite(sum, inverse_weight_)) return NonFinite();
  if (plan_.codecs.Reply(step_) == ReplyKind::kDelta && IsMonitored()) {
    weights_before_.assign(parts_.weights.begin(), parts_.weights.end());
  }
  StepWeights(sum);
  if (context_.laps != nullptr) context_.laps->End(Stage::kRule, 1, KeyBytes(plan_.entry));
  // A rule that steps by signs has left them in the sum.
  absl::StatusOr<Buffer> payload = EncodeWeights(sum.f32());
  if (!payload.ok()) {
    return Aborted(
        "tensor '%s' step %d: the weights are no longer finite (%s); the learning rate was %g",
        plan_.name, step_, payload.status().message(), learning_rate_);
  }
  return Reply{.payload = *std::move(payload),
               .base_step = std::exchange(parts_.weights_step, step_)};
}

absl::Status ReplyEncoder::CheckMayStep() const {
  for (size_t i = 0; i < present_.size(); ++i) {
    if (present_[i] && !parts_.segments[i].has_weights) {
      return Aborted(
          "tensor '%s': the server has no weights to update; set them before the first push",
          plan_.name);
    }
  }
  return absl::OkStatus();
}

void ReplyEncoder::StepWeights(MutableView sum) {
  const UpdateRule& rule = RuleOf(plan_, parts_);
  // Moments of new elements begin at 0.
  parts_.moments.resize(sum.n * NumMoments(plan_, parts_));
  float* const weights = parts_.weights.Mutable();
  for (size_t i = 0; i < present_.size(); ++i) {
    if (!present_[i]) continue;
    const size_t offset = pull_.segment_offset(i);
    UpdateSlice slice{
        .sum = sum.f32() + offset, .weights = weights + offset, .n = pull_.segment_elements(i)};
    for (int slot = 0; slot < rule.slots(); ++slot) {
      slice.moments[slot] = parts_.moments.data() + slot * sum.n + offset;
    }
    rule.Update(slice, {.inverse_weight = inverse_weight_,
                        .learning_rate = learning_rate_,
                        .updates = parts_.segments[i].updates++});
  }
}

absl::StatusOr<Buffer> ReplyEncoder::EncodeWeights(const float* signs) {
  const ReplyKind kind = plan_.codecs.Reply(step_);
  const ConstView weights{parts_.weights.data(), DType::kFloat32, pull_.num_elements()};
  // Uncompressed weights of one segment have the payload's very bytes, so the reply shares their
  // block. The next step then copies the weights, unless the reply has gone by then
  // (SharedFloats::Mutable).
  const bool is_payload = kind == ReplyKind::kWeights && plan_.codecs.reply != ReplyKind::kDelta &&
                          pull_.codec().id() == CodecId::kNone && pull_.num_segments() == 1;
  if (is_payload && AllFinite(weights, 1.0f)) return parts_.weights.bytes();
  return MakePayload([&](MutableByteSpan out) -> absl::StatusOr<size_t> {
    if (kind == ReplyKind::kDelta) return EncodeDelta(out);
    if (kind == ReplyKind::kWeights) return EncodeWholeWeights(out);
    return EncodePlain({signs, DType::kFloat32, pull_.num_elements()}, 1.0f, out);
  });
}

absl::StatusOr<size_t> ReplyEncoder::EncodeWholeWeights(MutableByteSpan out) {
  const float* const weights = parts_.weights.data();
  const auto used = EncodePlain({weights, DType::kFloat32, pull_.num_elements()}, 1.0f, out);
  // In the warm-up of a delta link whole weights are sent, and the replica must follow them. Absent
  // segments have not changed, so the replica has them already.
  if (used.ok() && plan_.codecs.reply == ReplyKind::kDelta) {
    for (size_t i = 0; i < present_.size(); ++i) {
      if (!present_[i]) continue;
      std::copy_n(weights + pull_.segment_offset(i), pull_.segment_elements(i),
                  parts_.replica.begin() + pull_.segment_offset(i));
    }
  }
  return used;
}

absl::StatusOr<size_t> ReplyEncoder::EncodePlain(ConstView x, float scale,
                                                 MutableByteSpan out) const {
  std::vector<SegmentedCodec::Input> inputs;
  for (size_t i = 0; i < pull_.num_segments(); ++i) {
    inputs.push_back(
        {x.Sub(pull_.segment_offset(i), pull_.segment_elements(i)), scale, present_[i] != 0});
  }
  return pull_.Encode(inputs, ReplyDraw(), out);
}

absl::StatusOr<size_t> ReplyEncoder::EncodeWithFeedback(ConstView sum, MutableByteSpan out) {
  const LinkFeedback& link = plan_.codecs.pull_feedback;
  const float decay = FeedbackDecay(link.decay, link.learning_rate_correction,
                                    parts_.previous_learning_rate, learning_rate_);
  parts_.residual.resize(sum.n);
  // The residual is in units of the mean, so it means the same whatever the number of contributors.
  // Segments that no worker had keep theirs.
  std::vector<SegmentedCodec::FeedbackInput> inputs;
  for (size_t i = 0; i < pull_.num_segments(); ++i) {
    const size_t offset = pull_.segment_offset(i);
    inputs.push_back({{.g = sum.Sub(offset, pull_.segment_elements(i)),
                       .options = {.scale = inverse_weight_, .decay = decay},
                       .residual = parts_.residual.data() + offset},
                      present_[i] != 0});
  }
  auto used = pull_.EncodeFeedback(inputs, ReplyDraw(), out);
  if (!used.ok()) return used;
  // Only now: after an error the residual is still the earlier step's.
  parts_.previous_learning_rate = learning_rate_;
  if (IsMonitored()) {
    Monitor(out.first(*used), [&](size_t i, ByteSpan payload) {
      return MeasureFeedback(pull_.codec(), inputs[i].feedback, payload);
    });
  }
  return used;
}

// Measures the payload that was just encoded, segment by segment.
template <typename Measure>
void ReplyEncoder::Monitor(ByteSpan payload, const Measure& measure) const {
  WorstOf worst;
  SegmentedCodec::Segments segments(pull_, payload);
  for (size_t i = 0; i < pull_.num_segments(); ++i) {
    const std::optional<ByteSpan> of_segment = segments.Next();
    if (of_segment.has_value()) worst.Add(i, measure(i, *of_segment));
  }
  context_.monitor->Note(step_, worst.all, plan_.name);
}

absl::StatusOr<size_t> ReplyEncoder::EncodeDelta(MutableByteSpan out) {
  std::vector<SegmentedCodec::DeltaInput> inputs;
  for (size_t i = 0; i < pull_.num_segments(); ++i) {
    const size_t offset = pull_.segment_offset(i);
    inputs.push_back(
        {parts_.weights.data() + offset, parts_.replica.data() + offset, present_[i] != 0});
  }
  auto used = pull_.EncodeDelta(inputs, ReplyDraw(), out);
  if (!used.ok() || weights_before_.empty()) return used;
  Monitor(out.first(*used), [&](size_t i, ByteSpan payload) {
    const ConstView weights{inputs[i].weights, DType::kFloat32, pull_.segment_elements(i)};
    return MeasureDelta(pull_.codec(), weights, weights_before_.data() + pull_.segment_offset(i),
                        inputs[i].replica, payload);
  });
  return used;
}

Draw ReplyEncoder::ReplyDraw() const {
  const bool shared = pull_.codec().shares_draw();
  return Draw({.run_seed = context_.run_seed,
               .tensor_name_hash = plan_.name_hash,
               .partition = plan_.entry.key.partition(),
               .step = step_,
               .purpose = shared ? DrawPurpose::kShared : DrawPurpose::kServerEncode});
}

}  // namespace

absl::StatusOr<Reply> EncodeReply(const ReplyContext& context, const KeyPlan& plan, Round* round,
                                  StateParts* parts) {
  if (round->has_nonfinite()) return Reply{.flags = kFlagNonFinite};
  if (round->is_all_absent() || round->total_weight() == 0) return Reply{.flags = kFlagAbsent};
  ReplyEncoder encoder(context, plan, round, parts);
  if (plan.rule != nullptr) return encoder.EncodeStep();
  if (plan.codecs.AddsEncoded(round->step())) return encoder.AddUndecoded();
  return encoder.EncodeMean();
}

}  // namespace bdn
