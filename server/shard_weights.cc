#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/endian.h"
#include "common/base/status.h"
#include "common/wire/message.h"
#include "compressors/memory/error_feedback.h"
#include "server/shard.h"

// The shard's part where it holds more than an aggregate: stepping on weights, and setting and
// telling what it holds.

namespace bdn {
namespace {

// The array that holds a part of a key's state, sized on first use, or null where this key has no
// such part.
std::vector<float>* ArrayOf(KeyState* state, StatePart part) {
  const KeyPlan& plan = *state->plan;
  std::vector<float>* array = nullptr;
  switch (part) {
    case StatePart::kWeights:
      if (plan.rule != nullptr) array = &state->weights;
      break;
    case StatePart::kReplica:
      if (plan.codecs.reply == ReplyKind::kDelta) array = &state->replica;
      break;
    case StatePart::kResidual:
      if (plan.codecs.pull_feedback.on) array = &state->residual;
      break;
    default:
      break;
  }
  if (array != nullptr) array->resize(plan.entry.elements);
  return array;
}

// Where a part of the segment at `offset` lies, or null.
float* FindPart(KeyState* state, StatePart part, size_t offset) {
  const KeyPlan& plan = *state->plan;
  if (part == StatePart::kMoment0 || part == StatePart::kMoment1) {
    const int slot = static_cast<int>(part) - static_cast<int>(StatePart::kMoment0);
    if (plan.rule == nullptr || slot >= plan.rule->slots()) return nullptr;
    state->moments.resize(plan.entry.elements * plan.rule->slots());
    return state->moments.data() + slot * plan.entry.elements + offset;
  }
  std::vector<float>* array = ArrayOf(state, part);
  return array == nullptr ? nullptr : array->data() + offset;
}

// The segment that a frame about state names, or why there is none.
absl::StatusOr<size_t> FindSegment(const FrameHeader& header, const KeyPlan& plan) {
  if (header.part == StatePart::kNone) {
    return InvalidArgument("a %s frame to dense tensor '%s' must name a part",
                           FrameTypeName(header.type), plan.name);
  }
  if (header.request == 0) return InvalidArgument("tensor '%s': requests count from 1", plan.name);
  if (header.num_elements != plan.entry.elements) {
    return InvalidArgument("tensor '%s' key %s has %d elements, not %d", plan.name,
                           header.key.ToString(), plan.entry.elements, header.num_elements);
  }
  const SegmentedCodec& layout = *plan.codecs.pull;
  for (size_t i = 0; i < layout.num_segments(); ++i) {
    if (layout.segment_offset(i) == header.element_offset) return i;
  }
  return InvalidArgument("tensor '%s' key %s has no segment at element %d", plan.name,
                         header.key.ToString(), header.element_offset);
}

absl::Status CheckFloats(const Frame& frame, size_t elements) {
  if (frame.payload.size() != elements * sizeof(float)) {
    return InvalidArgument("%d bytes for %d elements", frame.payload.size(), elements);
  }
  for (size_t i = 0; i < elements; ++i) {
    const auto value = LoadLittle<float>(frame.payload.span(), i * sizeof(float));
    if (!std::isfinite(value)) return InvalidArgument("element %d is %g", i, value);
  }
  return absl::OkStatus();
}

}  // namespace

// The rule's step, then what the workers need to follow it. A sum that is not finite changes
// nothing and says so.
absl::StatusOr<Frame> ServerShard::UpdateWeights(KeyState* state, const RoundFacts& facts) {
  const KeyPlan& plan = *state->plan;
  const SegmentedCodec& codec = plan.codecs.Pull(facts.step);
  const size_t n = codec.num_elements();
  if (!(facts.learning_rate >= 0)) {
    return InvalidArgument("tensor '%s': learning rate %g is below 0", plan.name,
                           facts.learning_rate);
  }
  const MutableView sum = Scratch(n, DType::kFloat32);
  const std::vector<uint8_t> present = Sum(*state, sum);
  state->segments.resize(codec.num_segments());
  for (size_t i = 0; i < present.size(); ++i) {
    if (present[i] && !state->segments[i].has_weights) {
      return Aborted(
          "tensor '%s': the server has no weights to update; set them before the first push",
          plan.name);
    }
  }
  const auto inverse_weight = static_cast<float>(1.0 / facts.total_weight);
  if (!AllFinite(sum, inverse_weight)) return NonFiniteReply(*state, facts.step);

  state->moments.resize(n * plan.rule->slots());
  for (size_t i = 0; i < codec.num_segments(); ++i) {
    if (!present[i]) continue;
    const size_t offset = codec.segment_offset(i);
    UpdateSlice slice{.sum = sum.f32() + offset,
                      .weights = state->weights.data() + offset,
                      .n = codec.segment_elements(i)};
    for (int slot = 0; slot < plan.rule->slots(); ++slot) {
      slice.moments[slot] = state->moments.data() + slot * n + offset;
    }
    plan.rule->Update(slice, {.inverse_weight = inverse_weight,
                              .learning_rate = facts.learning_rate,
                              .updates = state->segments[i].updates++});
  }
  BDN_ASSIGN_OR_RETURN(Frame reply, EncodeWeights(state, facts, sum.f32(), present));
  reply.header.base_step = std::exchange(state->weights_step, facts.step);
  return reply;
}

absl::StatusOr<Frame> ServerShard::EncodeWeights(KeyState* state, const RoundFacts& facts,
                                                 const float* signs,
                                                 const std::vector<uint8_t>& present) {
  const KeyPlan& plan = *state->plan;
  const SegmentedCodec& codec = plan.codecs.Pull(facts.step);
  const ReplyKind kind = plan.codecs.Reply(facts.step);
  const Draw draw = ReplyDraw(plan, facts.step);
  Buffer payload = NewBuffer(codec.MaxEncodedBytes());
  absl::StatusOr<size_t> used;
  if (kind == ReplyKind::kDelta) {
    std::vector<SegmentedCodec::DeltaInput> inputs;
    for (size_t i = 0; i < codec.num_segments(); ++i) {
      const size_t offset = codec.segment_offset(i);
      inputs.push_back(
          {state->weights.data() + offset, state->replica.data() + offset, present[i] != 0});
    }
    used = codec.EncodeDelta(inputs, draw, payload.mutable_span());
  } else {
    const float* from = kind == ReplyKind::kSigns ? signs : state->weights.data();
    std::vector<SegmentedCodec::Input> inputs;
    for (size_t i = 0; i < codec.num_segments(); ++i) {
      const ConstView x{from + codec.segment_offset(i), DType::kFloat32, codec.segment_elements(i)};
      inputs.push_back({x, 1.0f, present[i] != 0});
    }
    used = codec.Encode(inputs, draw, payload.mutable_span());
    // Whole weights of the warm-up: the absent segments' are what the replica has already.
    if (used.ok() && plan.codecs.reply == ReplyKind::kDelta) {
      for (size_t i = 0; i < codec.num_segments(); ++i) {
        if (!present[i]) continue;
        std::copy_n(from + codec.segment_offset(i), codec.segment_elements(i),
                    state->replica.begin() + codec.segment_offset(i));
      }
    }
  }
  if (!used.ok()) {
    return Aborted(
        "tensor '%s' step %d: the weights are no longer finite (%s); the learning rate was %g",
        plan.name, facts.step, used.status().message(), facts.learning_rate);
  }
  return PayloadReply(*state, facts.step, payload.Prefix(*used));
}

void ServerShard::OnStateInit(NodeId from, const Frame& frame, KeyState* state) {
  const FrameHeader& header = frame.header;
  const KeyPlan& plan = *state->plan;
  Rank rank = -1;
  absl::Status status = CheckSender(from, header, &rank);
  if (status.ok()) status = CheckPayload(frame);
  if (!status.ok()) return Refuse(from, header, status);
  const absl::StatusOr<size_t> segment = FindSegment(header, plan);
  if (!segment.ok()) return Refuse(from, header, segment.status());

  const auto bad = [&](const absl::Status& why) {
    Refuse(
        from, header,
        Annotate(why, absl::StrFormat("%s of tensor '%s'", StatePartName(header.part), plan.name)));
  };
  if (state->init_root >= 0 && state->init_root != rank) {
    return bad(AlreadyExists("rank %d has set it, and now rank %d does: one root only",
                             state->init_root, rank));
  }
  if (header.step > kMaxStep) {
    return bad(InvalidArgument("step %d is over %d", header.step, kMaxStep));
  }
  const Frame taken{Answer(header, FrameType::kReply), {}};
  if (header.request <= state->last_init) return output_->Send(from, taken);  // a repeat
  if (state->round.is_open()) {
    return bad(
        InvalidArgument("a push of step %d is under way; set it between steps", state->round.step));
  }
  if (header.step < state->last_step) {
    return bad(
        InvalidArgument("step %d, but the server stands at step %d: start a new job to go back",
                        header.step, state->last_step));
  }
  const size_t n = plan.codecs.pull->segment_elements(*segment);
  state->segments.resize(plan.codecs.pull->num_segments());
  SegmentState& kept = state->segments[*segment];
  if (header.part == StatePart::kCounters) {
    const absl::StatusOr<StateCounters> counters = DecodeCounters(frame.payload.span());
    if (!counters.ok()) return bad(counters.status());
    kept.updates = counters->updates;
    state->previous_learning_rate = counters->previous_learning_rate;
  } else {
    float* to = FindPart(state, header.part, header.element_offset);
    if (to == nullptr) return bad(NotFound("there is none by this rule and codec"));
    if (absl::Status floats = CheckFloats(frame, n); !floats.ok()) return bad(floats);
    DecodeFloats(frame.payload.span(), {to, n});
    if (header.part == StatePart::kWeights) {
      kept.has_weights = true;
      float* replica = FindPart(state, StatePart::kReplica, header.element_offset);
      if (replica != nullptr) std::copy_n(to, n, replica);
    }
  }
  state->last_init = header.request;
  state->init_root = rank;
  if (header.step > state->last_step) {
    state->last_step = header.step;
    state->last_reply = MakeFrame(
        StepAnswer(FrameType::kError, *state, header.step),
        EncodeError(OutOfRange("tensor '%s' was set at step %d", plan.name, header.step)));
  }
  state->weights_step = header.step;
  output_->Send(from, taken);
}

void ServerShard::OnStateFetch(NodeId from, const FrameHeader& header, KeyState* state) {
  const KeyPlan& plan = *state->plan;
  Rank rank = -1;
  if (absl::Status status = CheckSender(from, header, &rank); !status.ok()) {
    return Refuse(from, header, status);
  }
  const absl::StatusOr<size_t> segment = FindSegment(header, plan);
  if (!segment.ok()) return Refuse(from, header, segment.status());
  state->segments.resize(plan.codecs.pull->num_segments());
  const SegmentState& kept = state->segments[*segment];

  FrameHeader answer = Answer(header, FrameType::kValue);
  answer.base_step = plan.rule != nullptr ? state->weights_step : state->last_step;
  if (header.part == StatePart::kCounters) {
    return output_->Send(
        from, MakeFrame(answer, EncodeCounters({kept.updates, state->previous_learning_rate})));
  }
  const float* from_part = FindPart(state, header.part, header.element_offset);
  if (from_part == nullptr) {
    return Refuse(from, header,
                  NotFound("tensor '%s' has no %s by this rule and codec", plan.name,
                           StatePartName(header.part)));
  }
  if (plan.rule != nullptr && !kept.has_weights) {
    const bool alone = !leaving_.empty() && leaving_.size() + 1 >= membership_->workers.size();
    if (!alone) return SendWaiting(from, header, {});
    return Refuse(from, header,
                  Aborted("tensor '%s': its weights were never set, and all other workers are "
                          "leaving the job",
                          plan.name));
  }
  output_->Send(
      from,
      MakeFrame(answer, EncodeFloats({from_part, plan.codecs.pull->segment_elements(*segment)})));
}

}  // namespace bdn
