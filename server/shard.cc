#include "server/shard.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/base/draw.h"
#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "compressors/memory/error_feedback.h"

namespace bdn {
namespace {

// A step further ahead than this of the last closed one is a mistake, not a gap.
constexpr Step kMaxStepsAhead = Step{1} << 20;

using Kind = Contribution::Kind;

Kind KindOf(uint8_t flags) {
  if (flags & kFlagNonFinite) return Kind::kNonFinite;
  if (flags & kFlagAbsent) return Kind::kAbsent;
  return Kind::kPayload;
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

}  // namespace

ShardStats& ShardStats::operator+=(const ShardStats& other) {
  pushes += other.pushes;
  rounds += other.rounds;
  rounds_nonfinite += other.rounds_nonfinite;
  rounds_failed += other.rounds_failed;
  duplicates += other.duplicates;
  cached_replies += other.cached_replies;
  probes += other.probes;
  refused += other.refused;
  return *this;
}

void ServerShard::SetMembership(std::shared_ptr<const Membership> membership) {
  if (membership->epoch <= membership_->epoch) return;
  membership_ = std::move(membership);
  leaving_.clear();  // What they had pushed to open rounds they send again.
  for (auto& [key, state] : keys_) {
    state.round.Close();
    state.fetches.assign(membership_->workers.size(), 0);
  }
}

void ServerShard::SetLeaving(std::vector<Rank> ranks) {
  leaving_ = std::move(ranks);
  for (auto& [key, state] : keys_) {
    Round& round = state.round;
    if (!round.is_open()) continue;
    const absl::Status status = CheckMayClose(state, round.step, -1);
    if (status.ok()) continue;
    ++stats_.rounds_failed;
    Broadcast(MakeFrame(StepAnswer(FrameType::kError, state, round.step), EncodeError(status)));
    round.Close();  // The step stays open: somebody may still ask for the one before.
  }
}

// Whether every worker that is leaving, but for the one that pushes, is in the step's round.
absl::Status ServerShard::CheckMayClose(const KeyState& state, Step step, Rank pusher) const {
  const Round& round = state.round;
  for (const Rank rank : leaving_) {
    const bool contributed = round.is_open() && static_cast<size_t>(rank) < round.by_rank.size() &&
                             round.by_rank[rank].kind != Kind::kMissing;
    if (contributed || rank == pusher) continue;
    return Aborted(
        "tensor '%s' step %d: worker %d is leaving the job and pushes no more: all workers "
        "must push it equally often",
        state.plan->name, step, rank);
  }
  return absl::OkStatus();
}

void ServerShard::AddKey(std::shared_ptr<const KeyPlan> plan) {
  KeyState& state = keys_[plan->entry.key];
  if (state.plan != nullptr) return;
  state.fetches.assign(membership_->workers.size(), 0);
  state.plan = std::move(plan);
}

const KeyState* ServerShard::Find(Key key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second;
}

void ServerShard::OnFrame(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  if (header.sender != from) {
    ++stats_.refused;  // a forged sender gets no answer: it would reach the node it names
    return;
  }
  const auto found = keys_.find(header.key);
  if (found == keys_.end()) {
    if (header.catalogue_version > catalogue_version_) {
      return Refuse(from, header,
                    Unavailable("catalogue version %d is not here yet (this server has %d)",
                                header.catalogue_version, catalogue_version_));
    }
    return Refuse(from, header, NotFound("unknown key %s", header.key.ToString()));
  }
  KeyState* state = &found->second;
  const bool dense = state->plan->entry.kind == KeyKind::kDense;
  const bool is_about_state =
      header.part != StatePart::kNone || header.element_offset != 0 || header.request != 0;
  if (!dense && is_about_state) {
    return Refuse(from, header,
                  InvalidArgument("part, element_offset and request of broadcast tensor '%s' are 0",
                                  state->plan->name));
  }
  switch (header.type) {
    case FrameType::kPush:
      if (dense) return OnPush(from, frame, state);
      break;
    case FrameType::kProbe:
      return dense ? OnProbe(from, header, state) : OnValueProbe(from, header, state);
    case FrameType::kInit:
      return dense ? OnStateInit(from, frame, state) : OnInit(from, frame, state);
    case FrameType::kFetch:
      return dense ? OnStateFetch(from, header, state) : OnFetch(from, header, state);
    default:
      break;
  }
  Refuse(from, header,
         InvalidArgument("a %s frame does not go to %s tensor '%s'", FrameTypeName(header.type),
                         dense ? "dense" : "broadcast", state->plan->name));
}

absl::Status ServerShard::CheckSender(NodeId from, const FrameHeader& header, Rank* rank) const {
  if (header.epoch < membership_->epoch) {
    return FailedPrecondition("epoch %d has ended; the membership is at epoch %d", header.epoch,
                              membership_->epoch);
  }
  if (header.epoch > membership_->epoch) {
    return Unavailable("epoch %d is not known here yet; the membership is at epoch %d",
                       header.epoch, membership_->epoch);
  }
  for (size_t i = 0; i < membership_->workers.size(); ++i) {
    if (membership_->workers[i].id == from) {
      *rank = static_cast<Rank>(i);
      return absl::OkStatus();
    }
  }
  return PermissionDenied("node %d is not in the roster of epoch %d", from, membership_->epoch);
}

absl::Status ServerShard::CheckStep(const FrameHeader& header, const KeyState& state) const {
  if (header.step == 0) return InvalidArgument("steps count from 1");
  if (header.step > state.last_step + kMaxStepsAhead) {
    return InvalidArgument("step %d is too far ahead of step %d", header.step, state.last_step);
  }
  return absl::OkStatus();
}

void ServerShard::OnPush(NodeId from, const Frame& frame, KeyState* state) {
  const FrameHeader& header = frame.header;
  if (absl::Status status = CheckStep(header, *state); !status.ok()) {
    return Refuse(from, header, status);
  }
  if (header.step <= state->last_step) return AnswerClosed(from, header, state);
  Rank rank = -1;
  if (absl::Status status = CheckSender(from, header, &rank); !status.ok()) {
    return Refuse(from, header, status);
  }
  const Round& round = state->round;
  if (round.is_open()) {
    const bool contributed = round.by_rank[rank].kind != Kind::kMissing;
    if (header.step == round.step && contributed) {
      ++stats_.duplicates;
      return SendWaiting(from, header, round.MissingRanks());
    }
    if (header.step != round.step && contributed) {
      return Refuse(from, header,
                    InvalidArgument("rank %d pushed step %d while its step %d is open", rank,
                                    header.step, round.step));
    }
    if (header.step != round.step) {
      const Rank other = round.FirstRank();
      return FailRound(
          state, std::max(header.step, round.step),
          Aborted("tensor '%s': rank %d is at step %d and rank %d at step %d: all workers "
                  "must push it equally often",
                  state->plan->name, other, round.step, rank, header.step));
    }
  }
  bool fails_round = false;
  if (absl::Status status = CheckPush(frame, rank, *state, &fails_round); !status.ok()) {
    if (fails_round) return FailRound(state, header.step, status);
    return Refuse(from, header, status);
  }
  if (absl::Status status = CheckMayClose(*state, header.step, rank); !status.ok()) {
    return Refuse(from, header, status);
  }
  Accept(frame, rank, state);
}

absl::Status ServerShard::CheckPush(const Frame& frame, Rank rank, const KeyState& state,
                                    bool* fails_round) const {
  const FrameHeader& header = frame.header;
  const KeyPlan& plan = *state.plan;
  if (header.num_elements != plan.entry.elements) {
    return InvalidArgument("tensor '%s' key %s has %d elements, not %d", plan.name,
                           header.key.ToString(), plan.entry.elements, header.num_elements);
  }
  const SegmentedCodec& codec = plan.codecs.Push(header.step);
  if (KindOf(header.flags) == Kind::kPayload) {
    BDN_RETURN_IF_ERROR(CheckPayload(frame));
    if (header.codec != static_cast<uint8_t>(codec.codec().id())) {
      *fails_round = true;
      return InvalidArgument("tensor '%s' step %d: rank %d pushed codec %d, where %s was declared",
                             plan.name, header.step, rank, header.codec, codec.codec().spec());
    }
    BDN_RETURN_IF_ERROR(Annotate(
        codec.Validate(frame.payload.span()),
        absl::StrFormat("tensor '%s' step %d from rank %d", plan.name, header.step, rank)));
  } else if (!frame.payload.empty()) {
    return InvalidArgument("a push that is absent or non-finite carries no payload");
  }
  const Rank other = state.round.FirstRank();
  if (other >= 0 && !SameBits(state.round.by_rank[other].learning_rate, header.learning_rate)) {
    *fails_round = true;
    return InvalidArgument("tensor '%s' step %d: rank %d has learning rate %g and rank %d has %g",
                           plan.name, header.step, other, state.round.by_rank[other].learning_rate,
                           rank, header.learning_rate);
  }
  return absl::OkStatus();
}

void ServerShard::Accept(const Frame& frame, Rank rank, KeyState* state) {
  const FrameHeader& header = frame.header;
  Round& round = state->round;
  if (!round.is_open()) round.Open(header.step, membership_->workers.size());
  round.by_rank[rank] = {KindOf(header.flags), header.sender, header.weight, header.learning_rate,
                         frame.payload};
  ++stats_.pushes;
  if (round.IsComplete()) CloseRound(state);
}

void ServerShard::CloseRound(KeyState* state) {
  const Round& round = state->round;
  RoundFacts facts{.step = round.step, .learning_rate = round.by_rank[0].learning_rate};
  bool nonfinite = false;
  bool all_absent = true;
  for (const Contribution& contribution : round.by_rank) {
    facts.total_weight += contribution.weight;
    nonfinite |= contribution.kind == Kind::kNonFinite;
    all_absent &= contribution.kind == Kind::kAbsent;
  }
  Frame answer;
  if (nonfinite) {
    answer = NonFiniteReply(*state, round.step);
  } else if (all_absent || facts.total_weight == 0) {
    answer.header = StepAnswer(FrameType::kReply, *state, round.step);
    answer.header.flags = kFlagAbsent;
  } else if (state->plan->rule == nullptr && !state->plan->codecs.AddsEncoded(round.step)) {
    answer = EncodeResult(state, facts);
  } else {
    auto result =
        state->plan->rule == nullptr ? AddEncodedResult(state, facts) : UpdateWeights(state, facts);
    if (!result.ok()) return FailRound(state, round.step, result.status());
    answer = *std::move(result);
  }
  answer.header.weight = static_cast<float>(round.by_rank.size());
  if (answer.header.flags & kFlagNonFinite) ++stats_.rounds_nonfinite;
  ++stats_.rounds;
  FinishRound(state, round.step, std::move(answer));
}

// The payloads of the open round, by rank.
std::vector<ByteSpan> ServerShard::Payloads(const KeyState& state) {
  std::vector<ByteSpan> payloads;
  for (const Contribution& contribution : state.round.by_rank) {
    if (contribution.kind == Kind::kPayload) payloads.push_back(contribution.payload.span());
  }
  return payloads;
}

// Adds the contributions in rank order, from +0.0; says which segments anybody had.
std::vector<uint8_t> ServerShard::Sum(const KeyState& state, MutableView sum) const {
  const SegmentedCodec& codec = state.plan->codecs.Push(state.round.step);
  const std::vector<ByteSpan> payloads = Payloads(state);
  codec.DecodeSum(payloads, sum);
  std::vector<uint8_t> present(codec.num_segments(), 0);
  for (const ByteSpan payload : payloads) {
    for (size_t i = 0; i < present.size(); ++i) present[i] |= codec.Present(payload, i) ? 1 : 0;
  }
  return present;
}

Draw ServerShard::ReplyDraw(const KeyPlan& plan, Step step) const {
  const bool shared = plan.codecs.Pull(step).codec().shares_draw();
  return Draw({.run_seed = options_.run_seed,
               .tensor_name_hash = plan.name_hash,
               .partition = plan.entry.key.partition(),
               .step = step,
               .purpose = shared ? DrawPurpose::kShared : DrawPurpose::kServerEncode});
}

// The weighted mean, through error feedback, encoded. A sum that is not finite changes nothing and
// says so.
Frame ServerShard::EncodeResult(KeyState* state, const RoundFacts& facts) {
  const KeyPlan& plan = *state->plan;
  const SegmentedCodec& codec = plan.codecs.Pull(facts.step);
  const MutableView sum = Scratch(codec.num_elements(), plan.sum_dtype);
  const std::vector<uint8_t> present = Sum(*state, sum);
  const auto scale = static_cast<float>(1.0 / facts.total_weight);
  const Draw draw = ReplyDraw(plan, facts.step);
  Buffer payload = NewBuffer(codec.MaxEncodedBytes());
  // What a lossy stage of the codec has left out goes with the next reply, lossless or not.
  const bool feedback =
      plan.codecs.pull_feedback.on && (!codec.codec().lossless() || !state->residual.empty());
  if (feedback) {
    state->residual.resize(sum.n);
    const LinkFeedback& link = plan.codecs.pull_feedback;
    const float decay = FeedbackDecay(link.decay, link.learning_rate_correction,
                                      state->previous_learning_rate, facts.learning_rate);
    // The residual is in units of the mean, whatever the number of contributors. Segments that
    // nobody had keep theirs.
    std::vector<SegmentedCodec::FeedbackInput> inputs;
    for (size_t i = 0; i < codec.num_segments(); ++i) {
      const size_t offset = codec.segment_offset(i);
      inputs.push_back({{.g = sum.Sub(offset, codec.segment_elements(i)),
                         .options = {.scale = scale, .decay = decay},
                         .residual = state->residual.data() + offset},
                        present[i] != 0});
    }
    const auto used = codec.EncodeFeedback(inputs, draw, payload.mutable_span());
    if (!used.ok()) return NonFiniteReply(*state, facts.step);
    state->previous_learning_rate = facts.learning_rate;
    return PayloadReply(*state, facts.step, payload.Prefix(*used));
  }
  std::vector<SegmentedCodec::Input> inputs;
  for (size_t i = 0; i < codec.num_segments(); ++i) {
    inputs.push_back(
        {sum.Sub(codec.segment_offset(i), codec.segment_elements(i)), scale, present[i] != 0});
  }
  const auto used = codec.Encode(inputs, draw, payload.mutable_span());
  if (!used.ok()) return NonFiniteReply(*state, facts.step);
  return PayloadReply(*state, facts.step, payload.Prefix(*used));
}

// The reply where payloads add up as they are: nothing is decoded, nothing as long as the tensor is
// touched.
absl::StatusOr<Frame> ServerShard::AddEncodedResult(KeyState* state, const RoundFacts& facts) {
  const SegmentedCodec& codec = state->plan->codecs.Pull(facts.step);
  const auto scale = static_cast<float>(1.0 / facts.total_weight);
  Buffer payload = NewBuffer(codec.MaxEncodedBytes());
  const auto used = codec.AddEncoded(Payloads(*state), scale, payload.mutable_span());
  if (absl::IsInvalidArgument(used.status())) return NonFiniteReply(*state, facts.step);
  if (!used.ok()) return used.status();
  return PayloadReply(*state, facts.step, payload.Prefix(*used));
}

Frame ServerShard::NonFiniteReply(const KeyState& state, Step step) const {
  Frame reply;
  reply.header = StepAnswer(FrameType::kReply, state, step);
  reply.header.flags = kFlagNonFinite;
  return reply;
}

Frame ServerShard::PayloadReply(const KeyState& state, Step step, Buffer payload) const {
  FrameHeader header = StepAnswer(FrameType::kReply, state, step);
  header.codec = static_cast<uint8_t>(state.plan->codecs.Pull(step).codec().id());
  return MakeFrame(header, std::move(payload));
}

void ServerShard::FinishRound(KeyState* state, Step step, Frame answer) {
  state->last_step = step;
  state->last_reply = std::move(answer);
  state->round.Close();
  Broadcast(state->last_reply);
}

void ServerShard::FailRound(KeyState* state, Step step, const absl::Status& status) {
  ++stats_.rounds_failed;
  const Frame error = MakeFrame(StepAnswer(FrameType::kError, *state, step), EncodeError(status));
  if (state->round.is_open() && state->round.step != step) {
    Frame behind = error;  // those who wait for the open step hear of it under that step
    behind.header.step = state->round.step;
    Broadcast(behind);
  }
  FinishRound(state, step, error);
}

// Answers a question about a step that is over, whatever the epoch.
void ServerShard::AnswerClosed(NodeId from, const FrameHeader& header, KeyState* state) {
  const bool failed = state->last_reply.header.type == FrameType::kError;
  if (header.step != state->last_step && !failed) {
    return Refuse(from, header,
                  OutOfRange("step %d is over: tensor '%s' stands at step %d", header.step,
                             state->plan->name, state->last_step));
  }
  ++stats_.cached_replies;
  Frame answer = state->last_reply;
  answer.header.step = header.step;  // only a failure is sent for another step than its own
  output_->Send(from, std::move(answer));
}

void ServerShard::OnProbe(NodeId from, const FrameHeader& header, KeyState* state) {
  ++stats_.probes;
  if (absl::Status status = CheckStep(header, *state); !status.ok()) {
    return Refuse(from, header, status);
  }
  if (header.step <= state->last_step) return AnswerClosed(from, header, state);
  Rank rank = -1;
  if (absl::Status status = CheckSender(from, header, &rank); !status.ok()) {
    return Refuse(from, header, status);
  }
  Round nobody;
  nobody.Open(header.step, membership_->workers.size());
  const bool is_open = state->round.is_open() && state->round.step == header.step;
  SendWaiting(from, header, (is_open ? state->round : nobody).MissingRanks());
}

FrameHeader ServerShard::Answer(const FrameHeader& request, FrameType type) const {
  FrameHeader header = AnswerTo(request, type);
  StampHeader({options_.self, membership_->epoch, catalogue_version_}, &header);
  return header;
}

// The answer to everybody's push or broadcast of a step.
FrameHeader ServerShard::StepAnswer(FrameType type, const KeyState& state, Step step) const {
  const KeyEntry& entry = state.plan->entry;
  return Answer(PushHeader(entry.key, step, entry.elements), type);
}

void ServerShard::Broadcast(const Frame& frame) {
  for (const NodeInfo& worker : membership_->workers) output_->Send(worker.id, frame);
}

void ServerShard::Refuse(NodeId to, const FrameHeader& about, const absl::Status& status) {
  ++stats_.refused;
  output_->Send(to, MakeFrame(Answer(about, FrameType::kError), EncodeError(status)));
}

void ServerShard::SendWaiting(NodeId to, const FrameHeader& about,
                              const std::vector<Rank>& missing) {
  output_->Send(to, MakeFrame(Answer(about, FrameType::kWaiting), EncodeRanks(missing)));
}

MutableView ServerShard::Scratch(size_t n, DType dtype) {
  const size_t doubles = (n * DTypeSize(dtype) + sizeof(double) - 1) / sizeof(double);
  if (scratch_.size() < doubles) scratch_.resize(doubles);
  return {scratch_.data(), dtype, n};
}

Buffer ServerShard::NewBuffer(size_t size) const {
  return options_.pool != nullptr ? options_.pool->Get(size) : Buffer::Allocate(size);
}

}  // namespace bdn
