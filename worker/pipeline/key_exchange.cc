#include "worker/pipeline/key_exchange.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/headers.h"
#include "worker/error_fields.h"
#include "worker/pipeline/device_stages.h"

namespace bdn {
namespace {

// The most replies to one push that may come damaged: more than that are damaged by the path, not
// by chance.
constexpr int kMaxDamagedReplies = 8;
// The number of steps for which the host carries out a key's exchanges after the device had no
// memory for one.
constexpr Step kStepsByHost = 100;

// Returns the array that holds a state.
std::vector<float>& ArrayOf(LinkState what, LinkMemory* memory) {
  switch (what) {
    case LinkState::kMomentum:
      return memory->momentum;
    case LinkState::kReplica:
      return memory->replica->values;
    default:
      return memory->residual;
  }
}

}  // namespace

void KeyExchange::BeginAt(const KeyPosition& position) {
  if (key_.entry.kind == KeyKind::kBroadcast) {
    last_broadcast_ = position.step;
  } else if (position.is_uncompressed) {
    key_.link.codecs.GoUncompressed(position.step + 1);
    memory_.monitor.NoteUncompressed();
    memory_.guesses.NoteUncompressed();
  }
}

// ---- The queue

const Exchange* KeyExchange::Find(Step step) const {
  const auto found = std::find_if(queue_.begin(), queue_.end(),
                                  [step](const auto& exchange) { return exchange->step == step; });
  return found == queue_.end() ? nullptr : found->get();
}

absl::Status KeyExchange::CheckFits(const std::string& tensor, Step step,
                                    const PushRequest& request) const {
  const Exchange* exchange = Find(step);
  // The first push of a fused group in a step sets what the others must agree with.
  if (exchange == nullptr || exchange->num_filled == 0) return absl::OkStatus();
  if (exchange->program_steps != request.program_steps) {
    return InvalidArgument(
        "tensor '%s': program_steps %d, where others of its fused group have %d in step %d", tensor,
        request.program_steps, exchange->program_steps, step);
  }
  if (exchange->weight == request.weight && exchange->learning_rate == request.learning_rate) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "tensor '%s': weight %g and learning rate %g, where others of its fused group have %g and %g "
      "in step %d",
      tensor, request.weight, request.learning_rate, exchange->weight, exchange->learning_rate,
      step);
}

void KeyExchange::Deposit(size_t segment, uint64_t offset, uint64_t elements, Step step,
                          TicketId ticket, const PushRequest& request) {
  auto at = std::find_if(queue_.begin(), queue_.end(),
                         [step](const auto& exchange) { return exchange->step == step; });
  if (at == queue_.end()) {
    auto exchange = std::make_unique<Exchange>();
    exchange->step = step;
    exchange->priority = request.priority;
    exchange->segments.resize(key_.entry.segments.size());
    at = queue_.insert(queue_.end(), std::move(exchange));
  }
  Exchange& exchange = **at;
  exchange.weight = request.weight;
  exchange.learning_rate = request.learning_rate;
  exchange.program_steps = request.program_steps;
  // The frame carries the whole group, so it is as urgent as the most urgent of its tensors.
  exchange.priority = std::max(exchange.priority, request.priority);
  ExchangeSegment& filled = exchange.segments[segment];
  filled.filled = true;
  filled.present = !request.absent;
  if (request.data.data != nullptr) filled.data = request.data.Sub(offset, elements);
  filled.sources = request.sources;
  exchange.device = request.device;
  filled.source_offset = offset;
  filled.source_elements = request.data.n;
  if (request.left_out != nullptr) filled.left_out = request.left_out + offset;
  filled.loss_scale = request.loss_scale;
  filled.ticket = ticket;
  ++exchange.num_filled;
}

bool KeyExchange::Claim() {
  // Transition Deposit -> Claim. Only the front may be claimed: the residual of one step is an
  // input of the next, so a key's exchanges never overlap. An incomplete front waits for the other
  // tensors of its fused group, whose pushes call this again.
  if (claimed_ != nullptr || queue_.empty() || !queue_.front()->is_complete()) return false;
  claimed_ = queue_.front().get();
  return true;
}

std::unique_ptr<Exchange> KeyExchange::Finish() {
  // Transition to Finish. The key is free for the next Claim from here on, and nothing can wait
  // behind this exchange any more.
  std::unique_ptr<Exchange> finished = std::move(queue_.front());
  queue_.pop_front();
  claimed_ = nullptr;
  held_up_since_.reset();
  asked_ = {};  // its frame holds the push's payload
  return finished;
}

std::deque<std::unique_ptr<Exchange>> KeyExchange::TakeWaiting() {
  std::deque<std::unique_ptr<Exchange>> all = TakeAll();
  if (claimed_ == nullptr) return all;
  // The claimed exchange belongs to its stage, which will call Finish.
  queue_.push_back(std::move(all.front()));
  all.pop_front();
  held_up_since_.reset();  // nothing waits behind it
  return all;
}

void KeyExchange::NoteHeldUp(absl::Time now) {
  const bool holds_up = claimed_ != nullptr && claimed_->given_back && queue_.size() > 1;
  if (holds_up && !held_up_since_.has_value()) held_up_since_ = now;
}

// ---- The exchange that was claimed

RequestTable::Request KeyExchange::PushRequestOf(const Exchange& exchange) const {
  return {.frame = exchange.push,
          .server = key_.server,
          .catalogue_version = key_.catalogue_version,
          .tensor = key_.tensor_names[0],
          .of_exchange = true};
}

// Returns the request for the replica of the next segment, as the reply of this step left it.
RequestTable::Request KeyExchange::FetchRequest(const Exchange& exchange) {
  const size_t segment = exchange.segments_fetched;
  const bool delta = key_.link.codecs.reply == ReplyKind::kDelta;
  const FrameHeader header =
      StateHeader(FrameType::kFetch,
                  {.part = delta ? StatePart::kReplica : StatePart::kWeights,
                   .key = key_.entry.key,
                   .num_elements = key_.entry.elements,
                   .element_offset = key_.link.codecs.pull->segment_offset(segment)},
                  exchange.step, NextRequestNumber());
  return {.frame = Frame{header, {}},
          .server = key_.server,
          .catalogue_version = key_.catalogue_version,
          .tensor = key_.tensor_names[segment],
          .of_exchange = true};
}

absl::StatusOr<RequestTable::Request> KeyExchange::Encode(const EncodeContext& context) {
  // Transition Claim -> Encode. A residual that a device has lost must not be replaced by zeros
  // without a word: the training would silently lose what it owes.
  if (!memory_.lost.ok()) return Named(memory_.lost, "encode");
  absl::Status status;
  if (claimed_->is_on_device() && claimed_->step < memory_.host_until) {
    status = StageOnHost(claimed_);
  } else if (claimed_->is_on_device()) {
    status = EncodePushOnDevice(context, key_, &memory_, claimed_);
    if (absl::IsResourceExhausted(status)) {
      // Out of memory is the one error of a device after which nothing has changed, so the host can
      // take over in the same step.
      status = GoOnByHost(status);
    } else if (!status.ok()) {
      NoteLost(status);
    }
  }
  if (!claimed_->is_on_device()) {
    // EncodePush works on the host's arrays.
    if (status.ok()) status = BringHome(&memory_);
    if (status.ok()) EncodePush(context, key_, &memory_, claimed_);
    const bool is_of_device = claimed_->device != nullptr && claimed_->segments[0].present;
    if (status.ok() && is_of_device) claimed_->device->CountEncodedByHost();
  }
  if (!status.ok()) return Named(status, "encode");
  // A copy is kept: if no answer comes, the same request is made again, with the same bytes, for a
  // server may count them only once.
  return asked_ = PushRequestOf(*claimed_);
}

absl::Status KeyExchange::GoOnByHost(const absl::Status& why) {
  claimed_->device->SayThatMemoryIsOut(key_.tensor_names[0], why);
  // Memory that was out is likely to be out at the next step, too, and each try moves residual and
  // momentum.
  memory_.host_until = claimed_->step + kStepsByHost;
  return StageOnHost(claimed_);
}

void KeyExchange::NoteLost(const absl::Status& status) {
  // Without residual and momentum a failed exchange leaves nothing behind.
  if (!key_.has_memory()) return;
  memory_.lost = FailedPrecondition(
      "what its error feedback or momentum remembers was lost in step %d, when its device failed: "
      "%s; start again from a checkpoint",
      claimed_->step, status.message());
}

absl::Status KeyExchange::Named(const absl::Status& status, const char* stage) const {
  return WithFields(
      status,
      {.tensor = key_.tensor_names[0], .step = std::to_string(claimed_->step), .stage = stage});
}

KeyExchange::Next KeyExchange::Ask(RequestTable::Request request) {
  asked_ = std::move(request);
  return {asked_, {}};
}

bool KeyExchange::GiveBack() {
  // The exchange goes on for the sake of the residual alone: the callers may overwrite their
  // tensors from here on, so no pointer to these may be left.
  if (std::exchange(claimed_->given_back, true)) return false;
  for (ExchangeSegment& segment : claimed_->segments) {
    segment.data = {};
    segment.sources = nullptr;
    segment.left_out = nullptr;
  }
  return true;
}

KeyExchange::Next KeyExchange::OnAnswer(const RequestTable::Outcome& outcome) {
  const absl::StatusOr<Frame>& frame = outcome.frame;
  // Transition OnAnswer -> the same request once more. It is not known whether the server has
  // counted the push, and either guess may be wrong: a counted push that is undone would be sent
  // twice by the residual, one that is not counted would be lost. The server
  // knows, so it is asked until it answers, however often that takes (is_patient). The error tells
  // the pipeline to give the callers their tensors back.
  if (outcome.is_unknown) {
    asked_.is_patient = true;
    return {asked_, frame.status()};
  }
  // Transition OnAnswer -> Finish: the server has refused the push, or the job has failed. End
  // undoes a push that was never counted.
  if (!frame.ok()) return End(frame.status());
  // Any answer that is no error means that the server has counted the push. From here on an error
  // must not undo it, or it would be sent a second time.
  claimed_->counted = true;
  return frame->header.type == FrameType::kValue ? OnReplica(*frame) : OnReply(*frame);
}

KeyExchange::Next KeyExchange::OnReply(const Frame& reply) {
  const absl::Status status = CheckReply(key_, *claimed_, reply);
  // Transition OnAnswer -> the push once more. The reply was damaged on the way. The server still
  // has it, and takes the same push for a request to send it again.
  if (absl::IsDataLoss(status) && ++claimed_->damaged_replies < kMaxDamagedReplies) {
    return Ask(PushRequestOf(*claimed_));
  }
  if (!status.ok()) return End(Named(status, "decode"));
  // All workers learn it from the same reply, so that all encode the next step alike.
  if (reply.header.flags & kFlagUncompressed) {
    key_.link.codecs.GoUncompressed(claimed_->step + 1);
    memory_.monitor.NoteUncompressed();
    memory_.guesses.NoteUncompressed();
  }
  // Transition OnAnswer -> Finish, without a result. The replica keeps the step that it has, which
  // the next wanted reply finds to be too old.
  if (reply.header.flags & kFlagUnwanted) return End(absl::OkStatus());
  if (LacksReplica(key_, memory_, reply)) {
    // Transition OnAnswer -> a fetch of the first segment's replica. The reply is of no use without
    // the replica on which it builds; but it says which segments are absent, and the fetched
    // replica is already that after this reply.
    NoteAbsent(key_, reply, claimed_);
    return Ask(FetchRequest(*claimed_));
  }
  return End(Named(Decode(reply), "decode"));
}

absl::Status KeyExchange::Decode(const Frame& reply) {
  if (claimed_->is_on_device()) {
    const absl::Status status = DecodeReplyOnDevice(key_, reply, &memory_, claimed_);
    if (!absl::IsResourceExhausted(status)) {
      // Decoding a reply changes neither residual nor momentum, except that it undoes the push of a
      // round that is not finite.
      if (!status.ok() && claimed_->nonfinite) NoteLost(status);
      return status;
    }
    BDN_RETURN_IF_ERROR(GoOnByHost(status));
    BDN_RETURN_IF_ERROR(BringHome(&memory_));
  }
  DecodeReply(key_, reply, &memory_, claimed_);
  // With error feedback on the way back a guess is made up for by the next reply.
  if (key_.link.codecs.reply_guesses() && !key_.link.codecs.IsUncompressed(claimed_->step + 1)) {
    size_t guessed = 0;
    for (const ExchangeSegment& segment : claimed_->segments) guessed += segment.guessed;
    memory_.guesses.Note(claimed_->step, guessed);
  }
  return claimed_->device == nullptr ? absl::OkStatus() : DeliverStaged(claimed_);
}

absl::Status KeyExchange::Undo() {
  if (claimed_->is_on_device()) {
    const absl::Status status = UndoPushOnDevice(key_, &memory_, claimed_);
    if (!absl::IsResourceExhausted(status)) {
      if (!status.ok()) NoteLost(status);
      return status;
    }
    BDN_RETURN_IF_ERROR(GoOnByHost(status));
    BDN_RETURN_IF_ERROR(BringHome(&memory_));
  }
  UndoPush(key_, &memory_, claimed_);
  return absl::OkStatus();
}

KeyExchange::Next KeyExchange::OnReplica(const Frame& value) {
  const absl::Status status = TakeReplica(key_, value, &memory_, claimed_);
  // Transition OnAnswer -> a fetch of the next segment's replica, or Finish after the last.
  const bool more = ++claimed_->segments_fetched < claimed_->segments.size();
  if (status.ok() && more) return Ask(FetchRequest(*claimed_));
  return End(status);
}

KeyExchange::Next KeyExchange::End(const absl::Status& status) {
  // An error ends the exchange; the residual must then be as if the push had never been encoded. An
  // error of the undoing itself is only logged: the callers get the first error, and NoteLost has
  // noted what is lost.
  if (!status.ok() && !claimed_->counted) {
    const absl::Status undone = Undo();
    if (!undone.ok()) LogError("%s", Named(undone, "undo").message());
  }
  return {std::nullopt, status};
}

// ---- The memory

absl::Status KeyExchange::CopyState(LinkState what, size_t segment, std::span<float> out) {
  // The remains of a lost residual must not become part of a checkpoint.
  if (what != LinkState::kReplica) BDN_RETURN_IF_ERROR(memory_.lost);
  BDN_RETURN_IF_ERROR(BringHome(&memory_));
  const std::vector<float>& state = ArrayOf(what, &memory_);
  // Without error feedback the residual is scratch memory.
  const bool is_kept =
      !state.empty() && (what != LinkState::kResidual || key_.link.codecs.push_feedback.on);
  if (!is_kept) {
    std::fill(out.begin(), out.end(), 0.0f);
  } else {
    std::copy_n(state.begin() + key_.link.codecs.push->segment_offset(segment), out.size(),
                out.begin());
  }
  return absl::OkStatus();
}

absl::Status KeyExchange::SetState(LinkState what, size_t segment, std::span<const float> in) {
  BDN_RETURN_IF_ERROR(BringHome(&memory_));
  memory_.lost = absl::OkStatus();  // a caller that sets one part of a checkpoint sets all
  MutexLock lock(&memory_.replica->mu);
  // A replica that a caller has made fits no reply, so the next reply fetches a new one.
  if (what == LinkState::kReplica) memory_.replica->step.reset();
  std::vector<float>& state = ArrayOf(what, &memory_);
  state.resize(key_.entry.elements);
  std::copy(in.begin(), in.end(), state.begin() + key_.link.codecs.push->segment_offset(segment));
  return absl::OkStatus();
}

std::shared_ptr<const Replica> KeyExchange::KeepCopy() {
  memory_.copy = std::make_shared<Replica>();
  MutexLock lock(&memory_.copy->mu);
  memory_.copy->values.assign(key_.entry.elements, std::numeric_limits<float>::quiet_NaN());
  return memory_.copy;
}

void KeyExchange::AdoptCopy(size_t segment, std::span<const float> weights) {
  MutexLock lock(&memory_.copy->mu);
  std::copy(weights.begin(), weights.end(),
            memory_.copy->values.begin() + key_.link.codecs.pull->segment_offset(segment));
}

void KeyExchange::AdoptReplica(size_t segment, Step step, std::span<const float> weights) {
  Replica& replica = *memory_.replica;
  MutexLock lock(&replica.mu);
  replica.step.reset();  // until all segments are here
  replica.values.resize(key_.entry.elements);
  std::copy(weights.begin(), weights.end(),
            replica.values.begin() + key_.link.codecs.pull->segment_offset(segment));
  // Segments of different steps make no replica.
  if (step != adopted_step_) adopted_.clear();
  adopted_step_ = step;
  adopted_.insert(segment);
  if (adopted_.size() == key_.entry.segments.size()) {
    replica.step = step;
    adopted_.clear();
  }
}

}  // namespace bdn
