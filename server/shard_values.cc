#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "server/shard.h"

namespace bdn {

void ServerShard::OnInit(NodeId from, const Frame& frame, KeyState* state) {
  const FrameHeader& header = frame.header;
  Rank rank = -1;
  absl::Status status = CheckSender(from, header, &rank);
  if (status.ok()) status = CheckPayload(frame);
  const uint64_t wanted = state->plan->entry.elements * DTypeSize(state->plan->entry.dtype);
  if (status.ok() &&
      (header.num_elements != state->plan->entry.elements || frame.payload.size() != wanted)) {
    status = InvalidArgument("tensor '%s' key %s has %d bytes, not %d", state->plan->name,
                             header.key.ToString(), wanted, frame.payload.size());
  }
  if (!status.ok()) return Refuse(from, header, status);

  for (const BroadcastValue* known : {&state->value, &state->pending_value}) {
    if (known->step != header.step) continue;
    const bool same = known->root == rank && known->crc == header.payload_crc &&
                      known->bytes.size() == frame.payload.size();
    if (same) return OnValueProbe(from, header, state);
    return Refuse(from, header,
                  AlreadyExists("tensor '%s' already has a value from rank %d, and rank %d sends "
                                "another: one root only",
                                state->plan->name, known->root, rank));
  }
  // The first value waits for nobody.
  if (state->value.step != 0) status = CheckMayCome(*state, header.step);
  if (!status.ok()) return Refuse(from, header, status);
  if (header.step < state->value.step || state->pending_value.step != 0) {
    return Refuse(from, header,
                  InvalidArgument("init step %d of tensor '%s', which stands at step %d",
                                  header.step, state->plan->name, state->value.step));
  }
  state->pending_value = {header.step, rank, frame.payload, header.payload_crc};
  PromoteValue(state);
}

// The root asks whether its value is in force: a reply, or whom it waits for, or its own rank when
// the value has not come.
void ServerShard::OnValueProbe(NodeId from, const FrameHeader& header, KeyState* state) {
  Rank rank = -1;
  if (absl::Status status = CheckSender(from, header, &rank); !status.ok()) {
    return Refuse(from, header, status);
  }
  if (header.step <= state->value.step) {
    return output_->Send(from, Frame{StepAnswer(FrameType::kReply, *state, header.step), {}});
  }
  if (absl::Status status = CheckMayCome(*state, header.step); !status.ok()) {
    return Refuse(from, header, status);
  }
  const bool is_pending = header.step == state->pending_value.step;
  SendWaiting(from, header, is_pending ? BehindValue(*state) : std::vector<Rank>{rank});
}

// Whether all workers may still come to the broadcast of `step`, which is not in force.
absl::Status ServerShard::CheckMayCome(const KeyState& state, Step step) const {
  const BroadcastValue& pending = state.pending_value;
  for (const Rank rank : leaving_) {
    if (static_cast<size_t>(rank) >= state.fetches.size() || state.fetches[rank] >= step) continue;
    if (pending.step == step && pending.root == rank) continue;
    return Aborted("broadcast of '%s': worker %d is leaving the job instead", state.plan->name,
                   rank);
  }
  return absl::OkStatus();
}

// Ranks other than the root that have not asked for the pending value yet.
std::vector<Rank> ServerShard::BehindValue(const KeyState& state) const {
  std::vector<Rank> behind;
  for (size_t i = 0; i < state.fetches.size(); ++i) {
    const Rank rank = static_cast<Rank>(i);
    if (rank != state.pending_value.root && state.fetches[i] < state.pending_value.step) {
      behind.push_back(rank);
    }
  }
  return behind;
}

void ServerShard::OnFetch(NodeId from, const FrameHeader& header, KeyState* state) {
  Rank rank = -1;
  if (absl::Status status = CheckSender(from, header, &rank); !status.ok()) {
    return Refuse(from, header, status);
  }
  if (header.step < state->value.step) {
    return Refuse(from, header,
                  OutOfRange("step %d of tensor '%s' is over", header.step, state->plan->name));
  }
  state->fetches[rank] = std::max(state->fetches[rank], header.step);
  if (header.step > state->value.step) {
    PromoteValue(state);
    if (header.step <= state->value.step) return;
    const absl::Status status = CheckMayCome(*state, header.step);
    return status.ok() ? SendWaiting(from, header, {}) : Refuse(from, header, status);
  }
  output_->Send(from, MakeFrame(StepAnswer(FrameType::kValue, *state, state->value.step),
                                state->value.bytes));
}

// The root's next value replaces the one before, and the root hears so, once nobody can ask for
// that any more: every other worker has asked for the next. The first value replaces nothing.
void ServerShard::PromoteValue(KeyState* state) {
  if (state->pending_value.step == 0) return;
  if (state->value.step != 0 && !BehindValue(*state).empty()) return;
  state->value = std::exchange(state->pending_value, BroadcastValue{});
  const Step step = state->value.step;
  output_->Send(membership_->workers[state->value.root].id,
                Frame{StepAnswer(FrameType::kReply, *state, step), {}});
  const Frame value = MakeFrame(StepAnswer(FrameType::kValue, *state, step), state->value.bytes);
  for (size_t rank = 0; rank < state->fetches.size(); ++rank) {
    if (state->fetches[rank] == step) output_->Send(membership_->workers[rank].id, value);
  }
}

}  // namespace bdn
