#include "server/reply_encoder.h"

#include <algorithm>
#include <utility>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "common/wire/frame.h"
#include "compressors/memory/error_feedback.h"

namespace bdn {
namespace {

using Kind = Contribution::Kind;

// One round that closes with payloads.
class ReplyEncoder {
 public:
  ReplyEncoder(const ReplyContext& context, const KeyPlan& plan, const Round& round,
               double total_weight, StateParts* parts);

  // The weighted mean, through error feedback where declared.
  Reply EncodeMean();
  // The mean where payloads add up as they are: nothing is decoded, nothing as long as the tensor
  // is touched.
  absl::StatusOr<Reply> AddUndecoded();
  // The rule's step on the weights, then what the workers need to follow it.
  absl::StatusOr<Reply> EncodeStep();

 private:
  // Adds the contributions in rank order, from +0.0, and notes which segments anybody had.
  MutableView Sum(DType dtype);
  absl::Status CheckMayStep() const;
  void StepWeights(MutableView sum);

  // What a payload is made from. Each returns the bytes used, or that an input is not finite.
  absl::StatusOr<size_t> EncodePlain(ConstView x, float scale, MutableByteSpan out) const;
  absl::StatusOr<size_t> EncodeWithFeedback(ConstView sum, MutableByteSpan out);
  absl::StatusOr<size_t> EncodeDelta(MutableByteSpan out);
  absl::StatusOr<size_t> EncodeWeights(const float* signs, MutableByteSpan out);

  Buffer NewPayload() const;
  Draw ReplyDraw() const;
  static Reply NonFinite() { return {.flags = kFlagNonFinite}; }

  const ReplyContext& context_;
  const KeyPlan& plan_;
  const SegmentedCodec& push_;
  const SegmentedCodec& pull_;
  const Step step_;
  const float learning_rate_;
  const float inverse_weight_;  // the sum times this is the mean
  StateParts& parts_;
  std::vector<ByteSpan> payloads_;  // by rank
  std::vector<uint8_t> present_;    // by segment: whether anybody had it
};

ReplyEncoder::ReplyEncoder(const ReplyContext& context, const KeyPlan& plan, const Round& round,
                           double total_weight, StateParts* parts)
    : context_(context),
      plan_(plan),
      push_(plan.codecs.Push(round.step)),
      pull_(plan.codecs.Pull(round.step)),
      step_(round.step),
      learning_rate_(round.by_rank[0].learning_rate),
      inverse_weight_(static_cast<float>(1.0 / total_weight)),
      parts_(*parts) {
  for (const Contribution& contribution : round.by_rank) {
    if (contribution.kind == Kind::kPayload) payloads_.push_back(contribution.payload.span());
  }
}

MutableView ReplyEncoder::Sum(DType dtype) {
  const size_t n = push_.num_elements();
  const size_t doubles = (n * DTypeSize(dtype) + sizeof(double) - 1) / sizeof(double);
  if (context_.scratch->size() < doubles) context_.scratch->resize(doubles);
  const MutableView sum{context_.scratch->data(), dtype, n};
  push_.DecodeSum(payloads_, sum);
  present_.assign(push_.num_segments(), 0);
  for (const ByteSpan payload : payloads_) {
    for (size_t i = 0; i < present_.size(); ++i) {
      present_[i] |= push_.Present(payload, i) ? 1 : 0;
    }
  }
  return sum;
}

Reply ReplyEncoder::EncodeMean() {
  const MutableView sum = Sum(plan_.sum_dtype);
  const Buffer payload = NewPayload();
  // What a lossy stage of the codec has left out goes with the next reply, lossless or not.
  const bool has_feedback =
      plan_.codecs.pull_feedback.on && (!pull_.codec().lossless() || !parts_.residual.empty());
  const absl::StatusOr<size_t> used =
      has_feedback ? EncodeWithFeedback(sum, payload.mutable_span())
                   : EncodePlain(sum, inverse_weight_, payload.mutable_span());
  if (!used.ok()) return NonFinite();
  return {.payload = payload.Prefix(*used)};
}

absl::StatusOr<Reply> ReplyEncoder::AddUndecoded() {
  const Buffer payload = NewPayload();
  const auto used = pull_.AddEncoded(payloads_, inverse_weight_, payload.mutable_span());
  if (absl::IsInvalidArgument(used.status())) return NonFinite();
  if (!used.ok()) return used.status();
  return Reply{.payload = payload.Prefix(*used)};
}

absl::StatusOr<Reply> ReplyEncoder::EncodeStep() {
  if (!(learning_rate_ >= 0)) {
    return InvalidArgument("tensor '%s': learning rate %g is below 0", plan_.name, learning_rate_);
  }
  const MutableView sum = Sum(DType::kFloat32);
  BDN_RETURN_IF_ERROR(CheckMayStep());
  if (!AllFinite(sum, inverse_weight_)) return NonFinite();
  StepWeights(sum);
  const Buffer payload = NewPayload();
  // A rule that steps by signs has left them in the sum.
  const auto used = EncodeWeights(sum.f32(), payload.mutable_span());
  if (!used.ok()) {
    return Aborted(
        "tensor '%s' step %d: the weights are no longer finite (%s); the learning rate was %g",
        plan_.name, step_, used.status().message(), learning_rate_);
  }
  return Reply{.payload = payload.Prefix(*used),
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
  const UpdateRule& rule = *plan_.rule;
  parts_.moments.resize(sum.n * rule.slots());
  for (size_t i = 0; i < present_.size(); ++i) {
    if (!present_[i]) continue;
    const size_t offset = pull_.segment_offset(i);
    UpdateSlice slice{.sum = sum.f32() + offset,
                      .weights = parts_.weights.data() + offset,
                      .n = pull_.segment_elements(i)};
    for (int slot = 0; slot < rule.slots(); ++slot) {
      slice.moments[slot] = parts_.moments.data() + slot * sum.n + offset;
    }
    rule.Update(slice, {.inverse_weight = inverse_weight_,
                        .learning_rate = learning_rate_,
                        .updates = parts_.segments[i].updates++});
  }
}

absl::StatusOr<size_t> ReplyEncoder::EncodeWeights(const float* signs, MutableByteSpan out) {
  const ReplyKind kind = plan_.codecs.Reply(step_);
  if (kind == ReplyKind::kDelta) return EncodeDelta(out);
  const float* from = kind == ReplyKind::kSigns ? signs : parts_.weights.data();
  const auto used = EncodePlain({from, DType::kFloat32, pull_.num_elements()}, 1.0f, out);
  // Whole weights of the warm-up: the absent segments' are what the replica has already.
  if (used.ok() && plan_.codecs.reply == ReplyKind::kDelta) {
    for (size_t i = 0; i < present_.size(); ++i) {
      if (!present_[i]) continue;
      std::copy_n(from + pull_.segment_offset(i), pull_.segment_elements(i),
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
  // The residual is in units of the mean, whatever the number of contributors. Segments that
  // nobody had keep theirs.
  std::vector<SegmentedCodec::FeedbackInput> inputs;
  for (size_t i = 0; i < pull_.num_segments(); ++i) {
    const size_t offset = pull_.segment_offset(i);
    inputs.push_back({{.g = sum.Sub(offset, pull_.segment_elements(i)),
                       .options = {.scale = inverse_weight_, .decay = decay},
                       .residual = parts_.residual.data() + offset},
                      present_[i] != 0});
  }
  auto used = pull_.EncodeFeedback(inputs, ReplyDraw(), out);
  if (used.ok()) parts_.previous_learning_rate = learning_rate_;
  return used;
}

absl::StatusOr<size_t> ReplyEncoder::EncodeDelta(MutableByteSpan out) {
  std::vector<SegmentedCodec::DeltaInput> inputs;
  for (size_t i = 0; i < pull_.num_segments(); ++i) {
    const size_t offset = pull_.segment_offset(i);
    inputs.push_back(
        {parts_.weights.data() + offset, parts_.replica.data() + offset, present_[i] != 0});
  }
  return pull_.EncodeDelta(inputs, ReplyDraw(), out);
}

Buffer ReplyEncoder::NewPayload() const {
  const size_t size = pull_.MaxEncodedBytes();
  return context_.pool != nullptr ? context_.pool->Get(size) : Buffer::Allocate(size);
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

absl::StatusOr<Reply> EncodeReply(const ReplyContext& context, const KeyPlan& plan,
                                  const Round& round, StateParts* parts) {
  double total_weight = 0;  // absent contributions count
  bool nonfinite = false;
  bool all_absent = true;
  for (const Contribution& contribution : round.by_rank) {
    total_weight += contribution.weight;
    nonfinite |= contribution.kind == Kind::kNonFinite;
    all_absent &= contribution.kind == Kind::kAbsent;
  }
  if (nonfinite) return Reply{.flags = kFlagNonFinite};
  if (all_absent || total_weight == 0) return Reply{.flags = kFlagAbsent};
  ReplyEncoder encoder(context, plan, round, total_weight, parts);
  if (plan.rule != nullptr) return encoder.EncodeStep();
  if (plan.codecs.AddsEncoded(round.step)) return encoder.AddUndecoded();
  return encoder.EncodeMean();
}

}  // namespace bdn
