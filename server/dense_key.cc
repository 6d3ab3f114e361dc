#include "server/dense_key.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "common/base/draw.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/program_steps.h"
#include "server/key_history.h"
#include "server/key_snapshot.h"
#include "server/reply_encoder.h"

namespace bdn {
namespace {

// A step further ahead than this of the last closed one is a mistake, not a gap.
constexpr Step kMaxStepsAhead = Step{1} << 20;
// A transport may lend a payload of up to this size out of a larger block. Such a payload is
// copied, because holding it until the round closes would keep the whole block.
constexpr size_t kSmallPayload = 8192;
constexpr size_t kCountersBytes = 16;
// An init whose number is further ahead than this of the last init's is a mistake, too.
constexpr uint32_t kMaxRequestsAhead = 1u << 20;

using Kind = Contribution::Kind;

// Returns the same answer for a worker that does not want the payload. An answer without a payload
// says all that it has to say in its header.
Frame WithoutPayload(const Frame& reply) {
  if (reply.header.type != FrameType::kReply || !HasPayload(reply.header.flags)) return reply;
  FrameHeader header = reply.header;
  header.codec = 0;
  header.base_step = 0;
  header.flags |= kFlagUnwanted;
  return MakeFrame(header, Buffer());
}

Kind KindOf(uint8_t flags) {
  if (flags & kFlagNonFinite) return Kind::kNonFinite;
  if (flags & kFlagAbsent) return Kind::kAbsent;
  return Kind::kPayload;
}

// Returns whether a worker that gets this error sends the same bytes again.
bool IsRetried(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsFailedPrecondition(status) ||
         absl::IsDataLoss(status) || absl::IsUnauthenticated(status);
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

}  // namespace

void DenseState::SetRoster(std::shared_ptr<const Places> now) {
  for (const Rank rank : round.RanksHere()) {
    if (std::ranges::find(pushed_before, rank) == pushed_before.end()) {
      pushed_before.push_back(rank);
    }
  }
  round.Close();
  const std::shared_ptr<const Places> former = std::exchange(places, std::move(now));
  // By node, not by rank: another process that takes a lost one's rank has pushed and set nothing.
  const auto is_gone = [&](Rank rank) {
    const std::optional<Place> was = former->OfRank(rank);
    const std::optional<Place> is = places->OfRank(rank);
    return !is.has_value() || (was.has_value() && former->NodeOf(*was) != places->NodeOf(*is));
  };
  std::erase_if(pushed_before, is_gone);
  if (init_root >= 0 && is_gone(init_root)) {
    init_root = -1;
    last_init = 0;  // another worker counts its requests anew
  }
}

FrameHeader DenseKey::PushOf(Step step) const {
  return PushHeader(plan_.entry.key, step, plan_.entry.elements);
}

absl::Status DenseKey::CheckStep(const FrameHeader& header) const {
  if (header.step == 0) return InvalidArgument("steps count from 1");
  if (header.step > state_.last_step + kMaxStepsAhead) {
    return InvalidArgument("step %d is too far ahead of step %d", header.step, state_.last_step);
  }
  return absl::OkStatus();
}

Sends DenseKey::OnPush(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  StageLaps laps(shard_.options.stages,
                 {.key = plan_.entry.key, .step = header.step, .peer = from});
  const absl::Status step = CheckStep(header);
  if (!step.ok()) return shard_.Refuse(from, header, step);
  // Before the epoch is checked: a worker that lost the answer sends its push again, and gets the
  // answer even if its epoch is over.
  if (header.step <= state_.last_step) return AnswerClosed(from, header);
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const Round& round = state_.round;
  const Rank rank = state_.places->RankOf(*place);
  if (round.Has(*place)) {
    if (header.step == round.step()) {
      ++shard_.stats.duplicates;
      return shard_.Defer(from, header, round.MissingRanks(*place));
    }
    return shard_.Refuse(from, header,
                         InvalidArgument("rank %d pushed step %d while its step %d is open", rank,
                                         header.step, round.step()));
  }
  if (round.is_open() && header.step != round.step()) {
    // The two workers have pushed the tensor differently often. Neither step can ever be complete,
    // so the round fails for all workers at once, instead of letting them wait for ever.
    return FailRound(
        std::max(header.step, round.step()),
        Aborted("tensor '%s': rank %d is at step %d and rank %d at step %d: all workers "
                "must push it equally often",
                plan_.name, round.FirstRank(), round.step(), rank, header.step));
  }
  // Memory is checked last: a lack of it fails the round for all workers, which a push that is
  // refused for another reason must not do.
  Frame push = frame;
  PushCheck check = CheckPush(&push, *place);
  if (check.fails_round) return FailRound(header.step, check.status);
  if (check.status.ok()) check.status = CheckNobodyLeaves(header.step, rank);
  if (!check.status.ok()) return shard_.Refuse(from, header, check.status);
  check.status = CheckMayWait(push, *place);
  if (!check.status.ok()) return FailRound(header.step, check.status);
  return Accept(push, *place, &laps);
}

DenseKey::PushCheck DenseKey::CheckPush(Frame* push, Place place) const {
  const Frame& frame = *push;
  const Rank rank = state_.places->RankOf(place);
  const FrameHeader& header = frame.header;
  const auto bad = [](absl::Status why) { return PushCheck{.status = std::move(why)}; };
  const auto fails_round = [](absl::Status why) {
    return PushCheck{.status = std::move(why), .fails_round = true};
  };
  if (header.num_elements != plan_.entry.elements) {
    return bad(InvalidArgument("tensor '%s' key %s has %d elements, not %d", plan_.name,
                               header.key.ToString(), plan_.entry.elements, header.num_elements));
  }
  const SegmentedCodec& codec = plan_.codecs.Push(header.step);
  // Checked before the payload's bytes are read for the checksum, so that a peer cannot make the
  // shard read a huge payload. A foreign codec's payload, which fails the round with a better
  // error, may be longer than any of this key's.
  const size_t most = kSmallPayload + std::max(plan_.codecs.MaxEncodedBytes(),
                                               plan_.entry.elements * DTypeSize(plan_.sum_dtype));
  if (frame.payload.size() > most) {
    return bad(InvalidArgument("tensor '%s' key %s takes at most %d bytes, not %d", plan_.name,
                               header.key.ToString(), most, frame.payload.size()));
  }
  // Before the payload is validated: what is validated must be what is decoded later.
  if (!codec.bounds_itself()) Own(push);
  if (KindOf(header.flags) == Kind::kPayload) {
    const absl::Status intact = CheckPayload(frame);
    if (!intact.ok()) return bad(intact);
    if (header.codec != static_cast<uint8_t>(codec.codec().id())) {
      return fails_round(
          InvalidArgument("tensor '%s' step %d: rank %d pushed codec %d, where %s was declared",
                          plan_.name, header.step, rank, header.codec, codec.codec().spec()));
    }
    const absl::Status valid = codec.Validate(frame.payload.span());
    if (!valid.ok()) {
      return bad(Annotate(valid, absl::StrFormat("tensor '%s' step %d from rank %d", plan_.name,
                                                 header.step, rank)));
    }
    const absl::Status drawn = CheckDraw(frame);
    if (!drawn.ok()) {
      return fails_round(Annotate(drawn, absl::StrFormat("tensor '%s' step %d from rank %d",
                                                         plan_.name, header.step, rank)));
    }
  } else if (!frame.payload.empty()) {
    return bad(InvalidArgument("a push that is absent or non-finite carries no payload"));
  }
  // Before the learning rates are compared: if a worker's program is a step ahead, its schedule's
  // learning rate differs, too, and the steps are the cause.
  const absl::Status same =
      CheckSameProgramSteps(plan_.name, header.step, state_.round.program_place(),
                            {.rank = rank, .steps = header.program_steps});
  if (!same.ok()) return fails_round(same);
  const Rank other = state_.round.FirstRank();
  if (other < 0) return {};
  const float others = state_.round.learning_rate();
  if (SameBits(others, header.learning_rate)) return {};
  return fails_round(
      InvalidArgument("tensor '%s' step %d: rank %d has learning rate %g and rank %d has %g",
                      plan_.name, header.step, other, others, rank, header.learning_rate));
}

// For codecs with which all workers must draw alike: checks that the payload was drawn as the
// step's draw says.
absl::Status DenseKey::CheckDraw(const Frame& frame) const {
  const SegmentedCodec& codec = plan_.codecs.Push(frame.header.step);
  if (!codec.codec().shares_draw()) return absl::OkStatus();
  return codec.CheckDraw(frame.payload.span(), Draw({.run_seed = shard_.options.run_seed,
                                                     .tensor_name_hash = plan_.name_hash,
                                                     .partition = plan_.entry.key.partition(),
                                                     .step = frame.header.step,
                                                     .purpose = DrawPurpose::kShared}));
}

// OK if every worker that is leaving, except the pusher, is in the step's round.
absl::Status DenseKey::CheckNobodyLeaves(Step step, Rank pusher) const {
  for (const Rank rank : shard_.leaving) {
    // A rank whose push was dropped with an earlier roster has it still, and sends it again.
    const std::vector<Rank>& before = state_.pushed_before;
    const bool pushes_again = std::ranges::find(before, rank) != before.end();
    const bool takes_part = state_.places->OfRank(rank).has_value();
    if (!takes_part || rank == pusher || pushes_again || state_.round.HasRank(rank)) continue;
    return Aborted(
        "tensor '%s' step %d: worker %d is leaving the job and pushes no more: all workers "
        "must push it equally often",
        plan_.name, step, rank);
  }
  return absl::OkStatus();
}

// A push that arrives before its turn in the order of places is held until then, and however many
// workers there are, that has a limit. The cost of declared keys, with pushes in rank order, is
// within the limit, so a job whose pushes arrive in order never meets it.
absl::Status DenseKey::CheckMayWait(const Frame& frame, Place place) const {
  const Round& round = state_.round;
  // Before the first push of a step it is the turn of the first place.
  const bool is_turn = round.is_open() ? round.IsTurnOf(place) : IndexOf(place) == 0;
  const bool keeps_nothing = frame.payload.empty() || round.has_nonfinite();
  if (is_turn || keeps_nothing || shard_.options.budget == nullptr ||
      shard_.options.budget->Allows(frame.payload.size())) {
    return absl::OkStatus();
  }
  const Rank rank = state_.places->RankOf(place);
  const Rank next = round.is_open() ? round.RankInTurn() : state_.places->RankOf(PlaceAt(0));
  return ResourceExhausted(
      "tensor '%s' step %d: the push of rank %d must wait for that of rank %d, and this server "
      "holds all of the %d bytes that its setting max-bytes allows: raise it, or start more "
      "servers",
      plan_.name, frame.header.step, rank, next, shard_.options.budget->max_bytes());
}

Sends DenseKey::OnLeaving() {
  const Step step = state_.round.step();
  constexpr Rank kNobody = -1;
  const absl::Status status = CheckNobodyLeaves(step, kNobody);
  if (status.ok()) return {};
  ++shard_.stats.rounds_failed;
  state_.round.Close();
  state_.pushed_before.clear();  // The step stays open: a worker may still ask for the one before.
  return ToAll(shard_.ErrorFrame(PushOf(step), status));
}

Sends DenseKey::OnRetired() {
  state_.monitor.End();
  if (!state_.round.is_open()) return {};
  ++shard_.stats.rounds_failed;
  const absl::Status status = Aborted(
      "tensor '%s' step %d: what exchanged it was closed, or collected by Python, in all workers",
      plan_.name, state_.round.step());
  return ToAll(shard_.ErrorFrame(PushOf(state_.round.step()), status));
}

Sends DenseKey::Accept(const Frame& frame, Place place, StageLaps* laps) {
  const FrameHeader& header = frame.header;
  Round& round = state_.round;
  if (!round.is_open()) round.Open(header.step, state_.places);
  if (header.flags & kFlagUnwanted) round.NoteUnwanted(place);
  if (header.flags & kFlagUncompressed) round.NoteUncompressed();
  round.NoteSaved(header.saved_step);
  // Copied, not held: see kSmallPayload.
  const bool is_small = frame.payload.size() <= kSmallPayload;
  round.Add(plan_, shard_.options.pool, place,
            {KindOf(header.flags), header.weight, header.learning_rate, header.program_steps,
             is_small ? Buffer::CopyOf(frame.payload.span()) : frame.payload});
  ++shard_.stats.pushes;
  if (!frame.payload.empty()) {
    shard_.stats.bytes_pushed += frame.payload.size();
    shard_.stats.bytes_pushed_plain += KeyBytes(plan_.entry);
  }
  if (shard_.options.stages != nullptr) {
    round.BeginHold(StageSpan(shard_.options.stages), place, frame.payload.size());
  }
  laps->End(Stage::kSum, 1, KeyBytes(plan_.entry));
  if (round.IsComplete()) return CloseRound(laps);
  FaultPoint("push.held");
  return {};
}

Sends DenseKey::CloseRound(StageLaps* laps) {
  Round& round = state_.round;
  round.EndHold(plan_.entry.key, shard_.options.waits);
  // All workers have pushed this step, so none asks for the reply before any more. It is dropped
  // before the next one is made: both need not be held, and weights whose block it shares need no
  // copy for the rule's step.
  state_.last_reply = Frame();
  LinkMonitor& monitor = state_.monitor;
  if (!monitor.is_on() && plan_.codecs.pull_has_memory()) {
    monitor.Begin(shard_.options.quality, plan_.entry, plan_.name);
  }
  const ReplyContext context{.run_seed = shard_.options.run_seed,
                             .pool = shard_.options.pool,
                             .scratch = &shard_.scratch,
                             .laps = laps,
                             .monitor = &monitor};
  // Even a round that fails in the end may have let its rule change the weights.
  state_.digests.clear();
  state_.told.clear();
  absl::StatusOr<Reply> reply = EncodeReply(context, plan_, &round, &state_.parts);
  if (!reply.ok()) return FailRound(round.step(), reply.status());
  ++shard_.stats.rounds;
  if (reply->flags & kFlagNonFinite) ++shard_.stats.rounds_nonfinite;
  if (!(reply->flags & kFlagAbsent)) monitor.CountEncoding(!(reply->flags & kFlagNonFinite));
  FrameHeader header = shard_.AnswerHeader(PushOf(round.step()), FrameType::kReply);
  header.flags = reply->flags;
  // The reply tells all workers whether the next step is uncompressed, so all of them decide alike.
  if (DecideUncompressed()) header.flags |= kFlagUncompressed;
  header.base_step = reply->base_step;
  header.saved_step = round.saved_step();
  if (reply->flags == 0) {
    header.codec = static_cast<uint8_t>(plan_.codecs.Pull(round.step()).codec().id());
  }
  state_.last_step = round.step();
  state_.last_reply =
      MakeFrame(header, std::move(reply->payload), shard_.options.needs_checksums());
  laps->End(Stage::kEncode, 1, KeyBytes(plan_.entry));
  WriteRound(shard_.options.history, *state_.places, plan_.entry.ranks, state_.last_reply);
  state_.last_failure = Frame();
  Sends sends = ToAll(state_.last_reply);
  for (const Place place : round.unwanted()) {
    sends[IndexOf(place)].frame = WithoutPayload(state_.last_reply);
  }
  if (const size_t bytes = state_.last_reply.payload.size(); bytes > 0) {
    // A payload counts once for each worker that it is sent to.
    const uint64_t wanted = sends.size() - std::min(sends.size(), round.unwanted().size());
    shard_.stats.bytes_replied += wanted * bytes;
    shard_.stats.bytes_replied_plain += wanted * KeyBytes(plan_.entry);
  }
  round.Close();
  state_.pushed_before.clear();
  FaultPoint("round.closed");
  return sends;
}

void DenseKey::KeepReply(const GivenReply& given) {
  state_.told.clear();
  state_.digests.clear();
  if (given.step != state_.last_step) {
    // An init has skipped the steps up to the last, and nobody has a reply to that.
    state_.last_failure = shard_.ErrorFrame(
        PushOf(state_.last_step),
        OutOfRange("tensor '%s' was set at step %d", plan_.name, state_.last_step));
    return;
  }
  FrameHeader header = shard_.AnswerHeader(PushOf(given.step), FrameType::kReply);
  header.flags = given.flags;
  if (!HasPayload(given.flags)) {
    state_.last_reply = Frame{header, {}};
    return;
  }
  header.base_step = given.base_step;
  header.codec = given.codec;
  state_.last_reply =
      MakeFrame(header, Buffer::CopyOf(given.payload), shard_.options.needs_checksums());
}

// Returns whether the key goes uncompressed from the next step on: because it did before, because a
// push asks for it, or because the guard of the replies' link does. Every worker that has this
// step's reply knows it before the next step begins.
bool DenseKey::DecideUncompressed() {
  const Step next = state_.round.step() + 1;
  const bool did = plan_.codecs.IsUncompressed(next);
  if (!did && (state_.round.asks_uncompressed() || state_.monitor.WantsUncompressed())) {
    plan_.codecs.GoUncompressed(next);
    state_.monitor.NoteUncompressed();
    if (plan_.codecs.IsUncompressed(next)) {
      LogWarning(
          "tensor '%s' goes uncompressed both ways from step %d on (by quality-guard, or because "
          "replies by a sketch did not determine all elements)",
          plan_.name, next);
    }
  }
  // Of a key that is rebuilt, the codecs may know it before the step that has decided it.
  const bool is_uncompressed = plan_.codecs.IsUncompressed(next);
  if (did && is_uncompressed && !state_.monitor.findings().has_acted) {
    state_.monitor.NoteUncompressed();
  }
  return is_uncompressed;
}

// Closes `step` for all workers with an error instead of a reply, and with the same error the open
// step, if that is another. `last_reply` stays: a worker may still ask for the result of the step
// before.
Sends DenseKey::FailRound(Step step, const absl::Status& why) {
  ++shard_.stats.rounds_failed;
  const Round failed = std::exchange(state_.round, Round{});
  state_.pushed_before.clear();
  // A round that has failed is over. With a code that means "try again" the workers would send the
  // same bytes until they give up, so such a code becomes Aborted.
  const absl::Status status = IsRetried(why) ? Aborted("%s", why.message()) : why;
  state_.last_step = step;
  state_.last_failure = shard_.ErrorFrame(PushOf(step), status);
  WriteFailed(shard_.options.history, plan_.entry.key, step, std::string(status.message()));
  Sends sends;
  if (failed.is_open() && failed.step() != step) {
    sends = ToAll(shard_.ErrorFrame(PushOf(failed.step()), status));
  }
  for (Outgoing& send : ToAll(state_.last_failure)) sends.push_back(std::move(send));
  return sends;
}

// Answers a request about a closed step, whatever its epoch: its worker has lost the answer.
Sends DenseKey::AnswerClosed(NodeId from, const FrameHeader& header) {
  const Frame& reply = state_.last_reply;
  const Frame& failure = state_.last_failure;
  const bool is_reply = reply.header.type == FrameType::kReply && header.step == reply.header.step;
  const bool failed = failure.header.type == FrameType::kError && header.step > reply.header.step;
  if (!is_reply && !failed) {
    return shard_.Refuse(from, header,
                         OutOfRange("step %d is over: tensor '%s' stands at step %d", header.step,
                                    plan_.name, state_.last_step));
  }
  ++shard_.stats.cached_replies;
  Frame answer = is_reply ? reply : failure;
  if (header.flags & kFlagUnwanted) answer = WithoutPayload(answer);
  answer.header.step = header.step;  // a failure is sent for another step than its own, too
  return {{from, std::move(answer)}};
}

Sends DenseKey::OnProbe(NodeId from, const FrameHeader& header) {
  ++shard_.stats.probes;
  const absl::Status step = CheckStep(header);
  if (!step.ok()) return shard_.Refuse(from, header, step);
  if (header.step <= state_.last_step) return AnswerClosed(from, header);
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  if (header.step == state_.round.step()) {
    return shard_.Defer(from, header, state_.round.MissingRanks(*place));
  }
  Round empty;
  empty.Open(header.step, state_.places);
  // No push of the step has come, so all ranks are missing, the asker's among them: it sends its
  // push again.
  return shard_.Defer(from, header, empty.MissingRanks(*place));
}

// Returns the segment that a frame about state names, or why there is none.
absl::StatusOr<size_t> DenseKey::FindSegment(const FrameHeader& header) const {
  if (header.part == StatePart::kNone) {
    return InvalidArgument("a %s frame to dense tensor '%s' must name a part",
                           FrameTypeName(header.type), plan_.name);
  }
  if (header.request == 0) return InvalidArgument("tensor '%s': requests count from 1", plan_.name);
  if (header.num_elements != plan_.entry.elements) {
    return InvalidArgument("tensor '%s' key %s has %d elements, not %d", plan_.name,
                           header.key.ToString(), plan_.entry.elements, header.num_elements);
  }
  const SegmentedCodec& layout = *plan_.codecs.pull;
  for (size_t i = 0; i < layout.num_segments(); ++i) {
    if (layout.segment_offset(i) == header.element_offset) return i;
  }
  return InvalidArgument("tensor '%s' key %s has no segment at element %d", plan_.name,
                         header.key.ToString(), header.element_offset);
}

Sends DenseKey::OnInit(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const absl::StatusOr<size_t> segment = FindSegment(header);
  if (!segment.ok()) return shard_.Refuse(from, header, segment.status());
  if (header.part == StatePart::kSnapshot || header.part == StatePart::kReply) {
    // A key that is whole takes none; this one is repeated, because its answer was lost.
    if (header.step <= state_.last_step) {
      return {{from, Frame{shard_.AnswerHeader(header, FrameType::kReply), {}}}};
    }
    return shard_.Refuse(from, header,
                         InvalidArgument("tensor '%s' is whole: it takes no %s", plan_.name,
                                         StatePartName(header.part)));
  }
  const size_t segment_bytes = plan_.codecs.pull->segment_elements(*segment) * sizeof(float);
  const size_t most =
      header.part == StatePart::kRule ? kMaxRuleBytes : std::max(segment_bytes, kCountersBytes);
  if (frame.payload.size() > most) {  // before its bytes are read for the checksum
    return shard_.Refuse(
        from, header,
        InvalidArgument("%s of tensor '%s': at most %d bytes, not %d", StatePartName(header.part),
                        plan_.name, most, frame.payload.size()));
  }
  const absl::Status intact = CheckPayload(frame);
  if (!intact.ok()) return shard_.Refuse(from, header, intact);
  const absl::Status taken = TakeInit(frame, state_.places->RankOf(*place), *segment);
  if (!taken.ok()) {
    const std::string part =
        absl::StrFormat("%s of tensor '%s'", StatePartName(header.part), plan_.name);
    return shard_.Refuse(from, header, Annotate(taken, part));
  }
  FaultPoint("init.half");
  return {{from, Frame{shard_.AnswerHeader(header, FrameType::kReply), {}}}};
}

// Returns whether an init would change weights that workers already hold as of its step. They would
// not notice the change, as their replies build on the step's number.
bool DenseKey::IsTold(const FrameHeader& init) const {
  const FrameHeader& reply = state_.last_reply.header;
  return (init.part == StatePart::kWeights || init.part == StatePart::kReplica) &&
         plan_.codecs.keeps_replica() && reply.type == FrameType::kReply &&
         HasPayload(reply.flags) && reply.step == init.step;
}

// Applies an init. OK also for a repeat, which changes nothing.
absl::Status DenseKey::TakeInit(const Frame& frame, Rank rank, size_t segment) {
  const FrameHeader& header = frame.header;
  if (state_.init_root >= 0 && state_.init_root != rank) {
    return AlreadyExists("rank %d has set it, and now rank %d does: one root only",
                         state_.init_root, rank);
  }
  if (header.step > kMaxStep) return InvalidArgument("step %d is over %d", header.step, kMaxStep);
  // The number of an init, not its content, tells a repeat: the state may have changed since.
  if (header.request <= state_.last_init) return absl::OkStatus();
  if (header.request - state_.last_init > kMaxRequestsAhead) {
    return InvalidArgument("request %d is too far ahead of %d", header.request, state_.last_init);
  }
  if (state_.round.is_open()) {
    return InvalidArgument("a push of step %d is under way; set it between steps",
                           state_.round.step());
  }
  // A rule is for the rounds to come, and belongs to no step.
  const bool is_rule = header.part == StatePart::kRule;
  if (header.step < state_.last_step && !is_rule) {
    return InvalidArgument("step %d, but the server stands at step %d: start a new job to go back",
                           header.step, state_.last_step);
  }
  if (IsTold(header)) {
    return InvalidArgument(
        "workers have the reply of step %d, which later ones build on: set it as of a later step",
        header.step);
  }
  if (!HasPart(plan_, state_.parts, header.part)) {
    return NotFound("there is none by this rule and codec");
  }
  BDN_RETURN_IF_ERROR(SetPart(plan_, header.part, segment, frame.payload.span(), &state_.parts));
  state_.told.clear();
  state_.digests.clear();
  // Only now that the init was applied: a refused init binds nobody.
  state_.init_root = rank;
  state_.last_init = header.request;
  WriteSet(shard_.options.history, header, rank);
  if (is_rule) return absl::OkStatus();
  state_.parts.weights_step = header.step;
  // Steps up to the one that was set are over. A worker that still asks for one of them gets this
  // error.
  if (header.step > state_.last_step) {
    state_.last_step = header.step;
    state_.last_failure = shard_.ErrorFrame(
        PushOf(header.step), OutOfRange("tensor '%s' was set at step %d", plan_.name, header.step));
  }
  return absl::OkStatus();
}

Sends DenseKey::OnFetch(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  absl::StatusOr<size_t> segment = FindSegment(header);
  if (segment.ok()) {
    if (const absl::Status digest = CheckDigest(frame); !digest.ok()) segment = digest;
  }
  if (!segment.ok()) return shard_.Refuse(from, header, segment.status());
  if (header.part == StatePart::kPosition) {
    const Step step = state_.last_step;
    const Buffer position = EncodePosition({step, plan_.codecs.IsUncompressed(step + 1)});
    return {{from, MakeFrame(shard_.AnswerHeader(header, FrameType::kValue), position)}};
  }
  if (header.part == StatePart::kSnapshot) {
    FrameHeader value = shard_.AnswerHeader(header, FrameType::kValue);
    value.base_step = state_.last_step;
    const Buffer snapshot = EncodeSnapshot(plan_, state_);
    FaultPoint("snapshot.half");
    return {{from, MakeFrame(value, snapshot)}};
  }
  if (!HasPart(plan_, state_.parts, header.part)) {
    // A program that saves a checkpoint asks in this way whether the part exists. "No" is an
    // answer, so it is not counted as a refusal.
    const absl::Status none = NotFound("tensor '%s' has no %s by this rule and codec", plan_.name,
                                       StatePartName(header.part));
    return {{from, shard_.ErrorFrame(header, none)}};
  }
  const bool holds_weights = plan_.rule != nullptr;
  const bool is_set = !holds_weights || state_.parts.segments[*segment].has_weights;
  if (!is_set && header.part != StatePart::kCounters) {
    // With all other workers leaving, none is left to set the weights, and a wait would have no
    // end.
    const auto leaving = std::ranges::count_if(
        shard_.leaving, [this](Rank rank) { return state_.places->OfRank(rank).has_value(); });
    const bool is_alone = leaving > 0 && static_cast<size_t>(leaving) + 1 >= state_.places->size();
    if (!is_alone) return shard_.Defer(from, header, {});
    return shard_.Refuse(from, header,
                         Aborted("tensor '%s': its weights were never set, and all other workers "
                                 "are leaving the job",
                                 plan_.name));
  }
  FrameHeader value = shard_.AnswerHeader(header, FrameType::kValue);
  value.base_step = holds_weights ? state_.parts.weights_step : state_.last_step;
  const Buffer payload = TellPart(header.part, *segment);
  if (Holds(frame, payload, *segment)) {
    value.flags = kFlagSame;
    return {{from, Frame{value, {}}}};
  }
  return {{from, MakeFrame(value, payload)}};
}

// Returns whether the asker already holds the payload that it asks for.
bool DenseKey::Holds(const Frame& fetch, const Buffer& payload, size_t segment) {
  if (fetch.payload.empty()) return false;
  const auto [known, is_new] = state_.digests.try_emplace({fetch.header.part, segment});
  if (is_new) known->second = DigestOf(payload.span());
  return std::ranges::equal(known->second, fetch.payload.span());
}

// Returns one payload for all workers that ask before the state changes, so that a fetch by many
// workers is encoded once. A weak reference does not keep the payload once all are served.
Buffer DenseKey::TellPart(StatePart part, size_t segment) {
  WeakBuffer& told = state_.told[{part, segment}];
  Buffer payload = told.Lock();
  if (!payload.empty()) return payload;
  payload = EncodePart(plan_, part, segment, state_.parts);
  told = WeakBuffer(payload);
  return payload;
}

}  // namespace bdn
