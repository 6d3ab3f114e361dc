#include "server/broadcast_key.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/wire/headers.h"

namespace bdn {
namespace {

// Calls that fail use up steps, at every worker alike. A step further ahead than this of the key's
// is a mistake.
constexpr Step kMaxStepsAhead = 1024;

}  // namespace

bool BroadcastState::IsBehind(Rank rank) const {
  const auto at = static_cast<size_t>(rank);
  return rank != value.root && at < fetches.size() && had[at] < value.step &&
         fetches[at] <= value.step;
}

void BroadcastState::CountBehind() {
  num_behind = 0;
  for (size_t i = 0; i < fetches.size(); ++i) num_behind += IsBehind(static_cast<Rank>(i)) ? 1 : 0;
}

// Changes facts of one rank and keeps num_behind right without a pass over all ranks. A rank begins
// to be behind only with a new value or roster, where CountBehind counts all, so only the other
// direction is handled here.
template <typename Change>
void BroadcastState::Counted(Rank rank, const Change& change) {
  const bool was_behind = IsBehind(rank);
  change();
  if (was_behind && !IsBehind(rank)) --num_behind;
}

void BroadcastState::SetRoster(size_t size) {
  fetches.assign(size, 0);
  holds.assign(size, std::nullopt);
  // Unlike `fetches`, this stays over a change of the roster: a rank keeps its value.
  had.resize(size);
  CountBehind();
}

void BroadcastState::SetValue(BroadcastValue in_force) {
  before = std::exchange(value, std::move(in_force));
  // Its step, root and checksum stay, so that a late repeat by its root is still recognised.
  before.bytes = Buffer();
  CountBehind();
}

void BroadcastState::NoteFetch(Rank rank, Step step) {
  Counted(rank, [&] { fetches[rank] = std::max(fetches[rank], step); });
}

void BroadcastState::NoteHas(Rank rank, Step step) {
  Counted(rank, [&] { had[rank] = std::max(had[rank], step); });
}

FrameHeader BroadcastKey::AnswerOf(FrameType type, Step step) const {
  const FrameHeader fetch =
      BroadcastHeader(FrameType::kFetch, plan_.entry.key, step, plan_.entry.elements);
  return shard_.AnswerHeader(fetch, type);
}

absl::Status BroadcastKey::CheckStep(const FrameHeader& header) const {
  if (header.step == 0) return InvalidArgument("the steps of a broadcast count from 1");
  if (header.step > state_.value.step + kMaxStepsAhead) {
    return InvalidArgument("%s step %d of tensor '%s', which stands at step %d: too far ahead",
                           FrameTypeName(header.type), header.step, plan_.name, state_.value.step);
  }
  return absl::OkStatus();
}

Sends BroadcastKey::OnInit(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const absl::Status step = CheckStep(header);
  if (!step.ok()) return shard_.Refuse(from, header, step);
  const absl::StatusOr<Rank> rank = shard_.RankOf(from, header.epoch);
  if (!rank.ok()) return shard_.Refuse(from, header, rank.status());
  const absl::Status status = CheckInit(frame, *rank);
  if (!status.ok()) return shard_.Refuse(from, header, status);
  // The root's init was sent again because it had lost our answer: the answer is that of a probe.
  if (IsRepeat(frame, *rank)) return OnProbe(from, header);
  state_.next = {header.step, *rank, frame.payload, header.payload_crc};
  return PutNextInForce();
}

// Returns whether the value is already here, in force or next.
bool BroadcastKey::IsRepeat(const Frame& frame, Rank rank) const {
  for (const BroadcastValue* known : {&state_.value, &state_.next}) {
    const bool is_same = known->step == frame.header.step && known->root == rank &&
                         known->crc == frame.header.payload_crc;
    if (is_same) return true;
  }
  return false;
}

absl::Status BroadcastKey::CheckInit(const Frame& frame, Rank rank) const {
  const FrameHeader& header = frame.header;
  BDN_RETURN_IF_ERROR(CheckPayload(frame));
  const uint64_t wanted = plan_.entry.elements * DTypeSize(plan_.entry.dtype);
  if (header.num_elements != plan_.entry.elements || frame.payload.size() != wanted) {
    return InvalidArgument("tensor '%s' key %s has %d bytes, not %d", plan_.name,
                           header.key.ToString(), wanted, frame.payload.size());
  }
  if (IsRepeat(frame, rank)) return absl::OkStatus();
  for (const BroadcastValue* known : {&state_.value, &state_.next}) {
    if (known->step != header.step) continue;
    return AlreadyExists(
        "tensor '%s' already has a value from rank %d, and rank %d sends another: one root only",
        plan_.name, known->root, rank);
  }
  // The first value replaces none, so it waits for no worker.
  if (state_.value.step != 0) BDN_RETURN_IF_ERROR(CheckNobodyLeaves(header.step));
  if (header.step < state_.value.step || state_.next.step != 0) {
    return InvalidArgument("init step %d of tensor '%s', which stands at step %d", header.step,
                           plan_.name, state_.value.step);
  }
  return absl::OkStatus();
}

Sends BroadcastKey::OnProbe(NodeId from, const FrameHeader& header) {
  const absl::Status step = CheckStep(header);
  if (!step.ok()) return shard_.Refuse(from, header, step);
  const absl::StatusOr<Rank> rank = shard_.RankOf(from, header.epoch);
  if (!rank.ok()) return shard_.Refuse(from, header, rank.status());
  // A root that asks after its value has been replaced must still hear that it was in force.
  for (const BroadcastValue* known : {&state_.value, &state_.before}) {
    if (header.step != known->step || *rank != known->root) continue;
    return {{from, Frame{AnswerOf(FrameType::kReply, header.step), {}}}};
  }
  if (header.step == state_.value.step) {
    NoteHas(*rank, header.step);
    return PutNextInForce();
  }
  if (header.step < state_.value.step) {
    return shard_.Refuse(from, header,
                         OutOfRange("step %d of tensor '%s' is over", header.step, plan_.name));
  }
  const absl::Status status = CheckNobodyLeaves(header.step);
  if (!status.ok()) return shard_.Refuse(from, header, status);
  const bool is_next = header.step == state_.next.step;
  return shard_.Defer(from, header, is_next ? RanksBehind() : std::vector<Rank>{*rank});
}

// Notes that a rank has the value, and drops the value's bytes once every rank has it.
void BroadcastKey::NoteHas(Rank rank, Step step) {
  state_.NoteHas(rank, step);
  if (state_.num_behind == 0) state_.value.bytes = Buffer();
}

// OK unless a worker is leaving that has not asked for `step`, which is not in force yet, and is
// not its root: it never will ask, and the value before would stay in force for ever.
absl::Status BroadcastKey::CheckNobodyLeaves(Step step) const {
  for (const Rank rank : shard_.leaving) {
    const bool is_in_roster = static_cast<size_t>(rank) < state_.fetches.size();
    const bool is_root = state_.next.step == step && state_.next.root == rank;
    if (!is_in_roster || state_.fetches[rank] >= step || is_root) continue;
    return Aborted("broadcast of '%s': worker %d is leaving the job instead", plan_.name, rank);
  }
  return absl::OkStatus();
}

// Returns the first ranks for which the next value must wait. Passes over the whole roster, which
// only the value's root makes the server do, when it asks.
std::vector<Rank> BroadcastKey::RanksBehind() const {
  std::vector<Rank> behind;
  for (size_t i = 0; i < state_.fetches.size() && behind.size() < kMostRanksTold; ++i) {
    const Rank rank = static_cast<Rank>(i);
    if (rank != state_.next.root && state_.IsBehind(rank)) behind.push_back(rank);
  }
  return behind;
}

absl::Status BroadcastKey::CheckFetch(const Frame& frame) const {
  BDN_RETURN_IF_ERROR(CheckStep(frame.header));
  return CheckDigest(frame);
}

Frame BroadcastKey::ValueFor(Rank rank) {
  FrameHeader header = AnswerOf(FrameType::kValue, state_.value.step);
  if (const std::optional<Digest>& held = state_.holds[rank]; held.has_value()) {
    std::optional<Digest>& digest = state_.value.digest;
    // The digest is a pass over the value, so it is made when the first worker sends one.
    if (!digest.has_value()) digest = DigestOf(state_.value.bytes.span());
    if (*held == *digest) {
      header.flags = kFlagSame;
      return Frame{header, {}};
    }
  }
  return MakeFrame(header, state_.value.bytes);
}

Sends BroadcastKey::OnFetch(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const absl::Status step = CheckFetch(frame);
  if (!step.ok()) return shard_.Refuse(from, header, step);
  const absl::StatusOr<Rank> rank = shard_.RankOf(from, header.epoch);
  if (!rank.ok()) return shard_.Refuse(from, header, rank.status());
  // Every rank has confirmed this value, so its bytes are gone; a fetch of it now is a late repeat.
  const bool is_dropped = header.step == state_.value.step && state_.value.bytes.empty();
  if (header.step < state_.value.step || is_dropped) {
    return shard_.Refuse(from, header,
                         OutOfRange("step %d of tensor '%s' is over", header.step, plan_.name));
  }
  // A fetch that is sent again carries no digest; the earlier one still holds unless it is of
  // another step.
  std::optional<Digest>& held = state_.holds[*rank];
  if (header.step > state_.fetches[*rank]) held.reset();
  if (!frame.payload.empty()) {
    std::ranges::copy(frame.payload.span(), held.emplace().begin());
  }
  state_.NoteFetch(*rank, header.step);
  if (header.step == state_.value.step) return {{from, ValueFor(*rank)}};
  Sends sends = PutNextInForce();
  if (header.step <= state_.value.step) return sends;  // the asker's value is among them
  const absl::Status status = CheckNobodyLeaves(header.step);
  Sends answer = status.ok() ? shard_.Defer(from, header, {}) : shard_.Refuse(from, header, status);
  for (Outgoing& send : answer) sends.push_back(std::move(send));
  return sends;
}

// Puts the root's next value in force, and tells the root, once no worker can ask for the value
// before any more. The first value replaces none.
Sends BroadcastKey::PutNextInForce() {
  if (state_.next.step == 0) return {};
  // The next root may still count as behind. By its init it shows that it has gone on, and will not
  // fetch the value in force.
  const size_t others_behind = state_.num_behind - (state_.IsBehind(state_.next.root) ? 1 : 0);
  if (state_.value.step != 0 && others_behind > 0) return {};
  state_.SetValue(std::exchange(state_.next, BroadcastValue{}));
  const Step step = state_.value.step;
  const std::vector<NodeInfo>& workers = shard_.membership->workers;
  Sends sends = {{workers[state_.value.root].id, Frame{AnswerOf(FrameType::kReply, step), {}}}};
  for (size_t rank = 0; rank < state_.fetches.size(); ++rank) {
    if (state_.fetches[rank] != step) continue;
    sends.push_back({workers[rank].id, ValueFor(static_cast<Rank>(rank))});
  }
  NoteHas(state_.value.root, step);
  return sends;
}

}  // namespace bdn
