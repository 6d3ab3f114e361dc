#include "server/broadcast_key.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"

namespace bdn {
namespace {

// Calls that fail use up steps, at every worker alike. A step further ahead than this of the key's
// is a mistake.
constexpr Step kMaxStepsAhead = 1024;

}  // namespace

bool BroadcastState::IsBehind(Place place) const {
  const size_t at = IndexOf(place);
  return places->RankOf(place) != value.root && had[at] < value.step && fetches[at] <= value.step;
}

std::optional<Step> BroadcastState::FetchedBy(Rank rank) const {
  const std::optional<Place> place = places->OfRank(rank);
  if (!place.has_value()) return std::nullopt;
  return fetches[IndexOf(*place)];
}

void BroadcastState::CountBehind() {
  num_behind = 0;
  for (size_t i = 0; i < places->size(); ++i) num_behind += IsBehind(PlaceAt(i)) ? 1 : 0;
}

// Changes facts of one place and keeps num_behind right without a pass over all of them. A place
// begins to be behind only with a new value or roster, where CountBehind counts all, so only the
// other direction is handled here.
template <typename Change>
void BroadcastState::Counted(Place place, const Change& change) {
  const bool was_behind = IsBehind(place);
  change();
  if (was_behind && !IsBehind(place)) --num_behind;
}

void BroadcastState::SetRoster(std::shared_ptr<const Places> now) {
  const std::shared_ptr<const Places> former = std::exchange(places, std::move(now));
  const std::vector<Step> fetched = std::exchange(fetches, std::vector<Step>(places->size()));
  const std::vector<Step> confirmed = std::exchange(had, std::vector<Step>(places->size()));
  std::vector<std::optional<Digest>> held = std::move(holds);
  holds.assign(places->size(), std::nullopt);
  const std::vector<Step> without = std::exchange(unwanted, std::vector<Step>(places->size()));
  const std::vector<std::optional<Step>> stood =
      std::exchange(stood_at, std::vector<std::optional<Step>>(places->size()));
  Step latest = std::max(value.step, next.step);
  for (const Step step : fetched) latest = std::max(latest, step);
  for (size_t i = 0; i < places->size(); ++i) {
    // By node, not by rank: another process that takes a lost one's rank has nothing.
    const std::optional<Place> was = former->OfNode(places->NodeOf(PlaceAt(i)));
    if (!was.has_value()) {
      if (former->size() > 0) stood_at[i] = latest;
      continue;
    }
    stood_at[i] = stood[IndexOf(*was)];
    fetches[i] = fetched[IndexOf(*was)];
    had[i] = confirmed[IndexOf(*was)];
    holds[i] = held[IndexOf(*was)];
    unwanted[i] = without[IndexOf(*was)];
  }
  CountBehind();
}

void BroadcastState::SetValue(BroadcastValue in_force) {
  before = std::exchange(value, std::move(in_force));
  // Its step, root and checksum stay, so that a late repeat by its root is still recognised.
  before.bytes = Buffer();
  CountBehind();
}

void BroadcastState::NoteFetch(Place place, Step step) {
  Step& fetched = fetches[IndexOf(place)];
  Counted(place, [&] { fetched = std::max(fetched, step); });
}

void BroadcastState::NoteHas(Place place, Step step) {
  Step& confirmed = had[IndexOf(place)];
  Counted(place, [&] { confirmed = std::max(confirmed, step); });
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
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const Rank rank = state_.places->RankOf(*place);
  const absl::Status status = CheckInit(frame, rank);
  if (!status.ok()) return shard_.Refuse(from, header, status);
  // The root's init was sent again because it had lost our answer: the answer is that of a probe.
  if (IsRepeat(frame, rank)) return OnProbe(from, header);
  state_.next = {header.step, rank, frame.payload, header.payload_crc};
  return PutNextInForce();
}

// Returns whether the value is already here, in force or next, or was in force before: of that the
// bytes are gone, but its root may still ask for the answer.
bool BroadcastKey::IsRepeat(const Frame& frame, Rank rank) const {
  if (frame.header.step == state_.before.step && rank == state_.before.root) return true;
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
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const Rank rank = state_.places->RankOf(*place);
  // A root that asks after its value has been replaced must still hear that it was in force.
  for (const BroadcastValue* known : {&state_.value, &state_.before}) {
    if (header.step != known->step || rank != known->root) continue;
    return {{from, Frame{AnswerOf(FrameType::kReply, header.step), {}}}};
  }
  if (header.step == state_.value.step) {
    NoteHas(*place, header.step);
    Sends sends = TellRoot();
    for (Outgoing& send : PutNextInForce()) sends.push_back(std::move(send));
    return sends;
  }
  if (header.step < state_.value.step) {
    return shard_.Refuse(from, header,
                         OutOfRange("step %d of tensor '%s' is over", header.step, plan_.name));
  }
  const absl::Status status = CheckNobodyLeaves(header.step);
  if (!status.ok()) return shard_.Refuse(from, header, status);
  const bool is_next = header.step == state_.next.step;
  return shard_.Defer(from, header, is_next ? RanksBehind() : std::vector<Rank>{rank});
}

// Notes that a place has the value, and drops the value's bytes once every place has it.
void BroadcastKey::NoteHas(Place place, Step step) {
  state_.NoteHas(place, step);
  if (state_.num_behind == 0) state_.value.bytes = Buffer();
}

// Tells the root of the value in force that every worker has it, if that is so.
Sends BroadcastKey::TellRoot() {
  const std::optional<Place> root = state_.places->OfRank(state_.value.root);
  if (!shard_.options.tells_roots || state_.num_behind > 0 || !root.has_value()) return {};
  FrameHeader reply = AnswerOf(FrameType::kReply, state_.value.step);
  reply.flags = kFlagUnwanted;
  return {{state_.places->NodeOf(*root), Frame{reply, {}}}};
}

// OK unless a worker is leaving that has not asked for `step`, which is not in force yet, and is
// not its root: it never will ask, and the value before would stay in force for ever.
absl::Status BroadcastKey::CheckNobodyLeaves(Step step) const {
  for (const Rank rank : shard_.leaving) {
    const std::optional<Step> fetched = state_.FetchedBy(rank);
    const bool is_root = state_.next.step == step && state_.next.root == rank;
    if (!fetched.has_value() || *fetched >= step || is_root) continue;
    return Aborted("broadcast of '%s': worker %d is leaving the job instead", plan_.name, rank);
  }
  return absl::OkStatus();
}

// Returns the first ranks for which the next value must wait. Passes over the whole roster, which
// only the value's root makes the server do, when it asks.
std::vector<Rank> BroadcastKey::RanksBehind() const {
  std::vector<Rank> behind;
  for (size_t i = 0; i < state_.places->size() && behind.size() < kMostRanksTold; ++i) {
    const Rank rank = state_.places->RankOf(PlaceAt(i));
    if (rank != state_.next.root && state_.IsBehind(PlaceAt(i))) behind.push_back(rank);
  }
  return behind;
}

absl::Status BroadcastKey::CheckFetch(const Frame& frame) const {
  BDN_RETURN_IF_ERROR(CheckStep(frame.header));
  return CheckDigest(frame);
}

Frame BroadcastKey::ValueFor(Place place) {
  FrameHeader header = AnswerOf(FrameType::kValue, state_.value.step);
  if (state_.unwanted[IndexOf(place)] == state_.value.step) {
    header.flags = kFlagSame;
    return Frame{header, {}};
  }
  if (const std::optional<Digest>& held = state_.holds[IndexOf(place)]; held.has_value()) {
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
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  // Every worker has confirmed this value, so its bytes are gone; a fetch of it now is a late
  // repeat.
  const bool is_dropped = header.step == state_.value.step && state_.value.bytes.empty();
  if (header.step < state_.value.step || is_dropped) {
    return shard_.Refuse(from, header,
                         OutOfRange("step %d of tensor '%s' is over", header.step, plan_.name));
  }
  // A fetch that is sent again carries no digest; the earlier one still holds unless it is of
  // another step.
  std::optional<Digest>& held = state_.holds[IndexOf(*place)];
  if (header.step > state_.fetches[IndexOf(*place)]) held.reset();
  if (!frame.payload.empty()) {
    std::ranges::copy(frame.payload.span(), held.emplace().begin());
  }
  if ((header.flags & kFlagUnwanted) != 0) state_.unwanted[IndexOf(*place)] = header.step;
  state_.NoteFetch(*place, header.step);
  if (header.step == state_.value.step) return {{from, ValueFor(*place)}};
  Sends sends = PutNextInForce();
  if (header.step <= state_.value.step) return sends;  // the asker's value is among them
  const absl::Status status = CheckNobodyLeaves(header.step);
  // The ranks for which the value waits are named where the root has set it. An empty list says
  // that the root has not.
  const bool is_next = header.step == state_.next.step;
  const std::vector<Rank> behind = is_next ? RanksBehind() : std::vector<Rank>();
  Sends answer =
      status.ok() ? shard_.Defer(from, header, behind) : shard_.Refuse(from, header, status);
  for (Outgoing& send : answer) sends.push_back(std::move(send));
  return sends;
}

Sends BroadcastKey::OnPosition(NodeId from, const FrameHeader& header) {
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const FrameHeader value = shard_.AnswerHeader(header, FrameType::kValue);
  const Step step = state_.stood_at[IndexOf(*place)].value_or(state_.value.step);
  Sends sends = {{from, MakeFrame(value, EncodePosition({.step = step}))}};
  state_.NoteFetch(*place, step);
  NoteHas(*place, step);
  for (Outgoing& send : PutNextInForce()) sends.push_back(std::move(send));
  return sends;
}

// Puts the root's next value in force, and tells the root, once no worker can ask for the value
// before any more. The first value replaces none.
Sends BroadcastKey::PutNextInForce() {
  if (state_.next.step == 0) return {};
  // The next root may still count as behind. By its init it shows that it has gone on, and will not
  // fetch the value in force.
  const Places& places = *state_.places;
  const std::optional<Place> root = places.OfRank(state_.next.root);  // nothing: it was lost since
  const bool root_is_behind = root.has_value() && state_.IsBehind(*root);
  const size_t others_behind = state_.num_behind - (root_is_behind ? 1 : 0);
  if (state_.value.step != 0 && others_behind > 0) return {};
  state_.SetValue(std::exchange(state_.next, BroadcastValue{}));
  const Step step = state_.value.step;
  Sends sends;
  if (root.has_value()) {
    FrameHeader reply = AnswerOf(FrameType::kReply, step);
    if (shard_.options.tells_roots && state_.num_behind == 0) reply.flags = kFlagUnwanted;
    sends.push_back({places.NodeOf(*root), Frame{reply, {}}});
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (state_.fetches[i] != step) continue;
    sends.push_back({places.NodeOf(PlaceAt(i)), ValueFor(PlaceAt(i))});
  }
  if (root.has_value()) NoteHas(*root, step);
  return sends;
}

}  // namespace bdn
