#include "server/key_rebuild.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "server/key_estimate.h"
#include "server/key_history.h"
#include "server/key_snapshot.h"
#include "server/key_state.h"

namespace bdn {

using Phase = KeyRebuild::Phase;
using What = RebuildOrder::What;

bool RebuildingKey::is_dense() const { return state_.plan->entry.kind == KeyKind::kDense; }

const Places& RebuildingKey::places() const {
  return is_dense() ? *state_.dense.places : *state_.broadcast.places;
}

void RebuildingKey::Begin() {
  if (is_dense()) {
    state_.dense.monitor.End();
    state_.dense = DenseState();
    state_.dense.parts = MakeStateParts(*state_.plan);
    state_.dense.SetRoster(shard_.PlacesOf(state_.plan->entry.ranks));
  } else {
    state_.broadcast = BroadcastState();
    state_.broadcast.SetRoster(shard_.PlacesOf(state_.plan->entry.ranks));
  }
  state_.rebuild = KeyRebuild{.phase = Phase::kGathering};
  state_.rebuild.reports.resize(places().size());
  state_.rebuild.asks.resize(places().size());
  WriteRebuild(shard_.options.history, state_.plan->entry.key, "begin", 0, 0);
}

// ---- reports

Sends RebuildingKey::OnReport(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  KeyRebuild& rebuild = state_.rebuild;
  const absl::StatusOr<Place> place = shard_.PlaceOf(places(), from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  if (const absl::Status intact = CheckPayload(frame); !intact.ok()) {
    return shard_.Refuse(from, header, intact);
  }
  absl::StatusOr<KeyReport> report = DecodeReport(frame.payload.span());
  if (!report.ok()) return shard_.Refuse(from, header, report.status());
  const Rank rank = places().RankOf(*place);
  const Step stands_at = is_dense() ? state_.dense.last_step : state_.broadcast.value.step;
  if (rebuild.phase == Phase::kOver || rebuild.phase == Phase::kGone) {
    rebuild.asks.resize(places().size());
    rebuild.asks[IndexOf(*place)] = header;
    return Answer(*place, {What::kGo, stands_at, stands_at});
  }
  if (rebuild.phase == Phase::kFailed) return NotYet(from, header);
  rebuild.asks[IndexOf(*place)] = header;
  switch (rebuild.phase) {
    case Phase::kGathering:
      rebuild.reports[IndexOf(*place)] = *std::move(report);
      if (std::ranges::all_of(rebuild.reports, [](const auto& one) { return one.has_value(); })) {
        return Decide();
      }
      FaultPoint("report.some");
      return shard_.Defer(from, header, Unreported(*place));
    case Phase::kSetting:
      if (rank == rebuild.setter)
        return Answer(*place, {What::kSet, rebuild.start, rebuild.target});
      return shard_.Defer(from, header, {rebuild.setter});
    case Phase::kGiving:
      if (rank == rebuild.giver)
        return Answer(*place, {What::kGive, rebuild.target, rebuild.target});
      return shard_.Defer(from, header, {rebuild.giver});
    default:
      if (!report->is_redone) return Answer(*place, {What::kRedo, rebuild.start, rebuild.target});
      return shard_.Defer(from, header, Unfinished(*place));
  }
}

std::vector<Rank> RebuildingKey::Unreported(Place asker) const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < places().size() && ranks.size() < kMostRanksTold; ++i) {
    const bool has_reported = state_.rebuild.reports[i].has_value();
    if (!has_reported && PlaceAt(i) != asker) ranks.push_back(places().RankOf(PlaceAt(i)));
  }
  return ranks;
}

// Returns the ranks for which the redo waits. The asker, which has done its part, is not one: it
// would take that for a sign that its report was lost.
std::vector<Rank> RebuildingKey::Unfinished(Place asker) const {
  const Round& round = state_.dense.round;
  std::vector<Rank> ranks;
  if (round.is_open()) ranks = round.MissingRanks(asker);
  if (ranks.empty() && IsInitDue(kMaxStep + 1)) ranks.push_back(state_.rebuild.inits_root);
  std::erase(ranks, places().RankOf(asker));
  return ranks;
}

Sends RebuildingKey::Answer(Place place, const RebuildOrder& order) {
  const FrameHeader ask = *std::exchange(state_.rebuild.asks[IndexOf(place)], std::nullopt);
  return {{places().NodeOf(place),
           MakeFrame(shard_.AnswerHeader(ask, FrameType::kRebuild), EncodeOrder(order))}};
}

Sends RebuildingKey::AnswerAll(const RebuildOrder& order) {
  Sends sends;
  for (size_t i = 0; i < places().size(); ++i) {
    if (!state_.rebuild.asks[i].has_value()) continue;
    for (Outgoing& send : Answer(PlaceAt(i), order)) sends.push_back(std::move(send));
  }
  return sends;
}

Sends RebuildingKey::GoToAll() {
  const Step stands_at = is_dense() ? state_.dense.last_step : state_.broadcast.value.step;
  return AnswerAll({What::kGo, stands_at, stands_at});
}

Sends RebuildingKey::End() {
  Sends sends = GoToAll();
  ++shard_.stats.rebuilt;
  const KeyRebuild& over = state_.rebuild;
  WriteRebuild(shard_.options.history, state_.plan->entry.key, "whole", over.start, over.target);
  state_.rebuild = KeyRebuild();
  if (--shard_.stats.rebuilding == 0) {
    LogInfo("all keys of one shard that came from lost servers are whole again; %d so far",
            shard_.stats.rebuilt);
  }
  return sends;
}

Sends RebuildingKey::Fail(const absl::Status& why) {
  const absl::Status status =
      Aborted("tensor '%s': its server was lost, and it cannot be rebuilt: %s", state_.plan->name,
              why.message());
  LogError("%s", status.message());
  state_.rebuild.phase = Phase::kFailed;
  if (shard_.options.on_failure != nullptr) shard_.options.on_failure(status);
  return {};
}

// ---- the plan

Sends RebuildingKey::Decide() {
  KeyRebuild& rebuild = state_.rebuild;
  // Others of the key's workers are done with it, too, or soon will be; its values are of no use.
  const bool is_retired =
      std::ranges::any_of(rebuild.reports, [](const auto& one) { return one->is_retired; });
  if (is_retired) {
    rebuild.phase = Phase::kGone;
    --shard_.stats.rebuilding;
    return GoToAll();
  }
  return is_dense() ? DecideDense() : DecideBroadcast();
}

Sends RebuildingKey::DecideDense() {
  KeyRebuild& rebuild = state_.rebuild;
  const KeyPlan& plan = *state_.plan;
  bool needs_snapshot = false;
  Step complete_from = 0;
  Step uncompressed_from = 0;
  Step lowest_open = 0;
  rebuild.target = 0;
  for (size_t i = 0; i < rebuild.reports.size(); ++i) {
    const KeyReport& report = *rebuild.reports[i];
    const Rank rank = places().RankOf(PlaceAt(i));
    if (report.is_broken) {
      return Fail(Aborted("worker %d had an error in the last step", rank));
    }
    rebuild.target = std::max(rebuild.target, report.done);
    complete_from = std::max(complete_from, report.complete_from);
    uncompressed_from = std::max(uncompressed_from, report.uncompressed_from);
    needs_snapshot |= report.needs_snapshot;
    if (report.open != 0 && (lowest_open == 0 || report.open < lowest_open)) {
      lowest_open = report.open;
    }
    if (report.inits.empty()) continue;
    if (rebuild.inits_root >= 0) {
      return Fail(Aborted("workers %d and %d have both set its state", rebuild.inits_root, rank));
    }
    rebuild.inits_root = rank;
    rebuild.inits = report.inits;
  }
  // A worker may still ask for the reply to the last step, which is only made by doing it again.
  const bool is_asked = lowest_open != 0 && lowest_open <= rebuild.target;
  const Step latest = rebuild.target - (is_asked ? 1 : 0);
  rebuild.setter = -1;
  bool has_start = complete_from <= latest;
  if (!HasState(plan)) {
    // Any step is made of its pushes alone.
    rebuild.start = latest;
  } else {
    rebuild.start = 0;
    has_start = complete_from == 0 && !needs_snapshot;
    for (size_t i = 0; i < rebuild.reports.size(); ++i) {
      for (const Step after : rebuild.reports[i]->snapshots) {
        if (after == 0 || after - 1 > latest || after - 1 < complete_from) continue;
        if (rebuild.setter >= 0 && after - 1 <= rebuild.start) continue;
        rebuild.start = after - 1;
        rebuild.setter = places().RankOf(PlaceAt(i));
        has_start = true;
      }
    }
  }
  if (!has_start) {
    if (uncompressed_from != 0) plan.codecs.GoUncompressed(uncompressed_from);
    return BeginEstimate(Aborted(
        "it stands at step %d, workers have their pushes after step %d, and no snapshot in between "
        "is left, because a worker was lost with the server or shortly before, or a step before "
        "had failed; go on from a checkpoint",
        rebuild.target, complete_from));
  }
  if (uncompressed_from != 0 && uncompressed_from <= rebuild.start + 1) {
    plan.codecs.GoUncompressed(uncompressed_from);
  }
  WriteRebuild(shard_.options.history, plan.entry.key, "plan", rebuild.start, rebuild.target);
  if (rebuild.setter < 0) {
    state_.dense.last_step = rebuild.start;
    return BeginRedo();
  }
  rebuild.phase = Phase::kSetting;
  const std::optional<Place> place = places().OfRank(rebuild.setter);
  return Answer(*place, {What::kSet, rebuild.start, rebuild.target});
}

Sends RebuildingKey::BeginEstimate(const absl::Status& why) {
  KeyRebuild& rebuild = state_.rebuild;
  // While all workers are here, the way to the target must be, too.
  if (shard_.membership->unsafe == 0) return Fail(why);
  rebuild.is_estimate = true;
  rebuild.start = 0;
  for (size_t i = 0; HasState(*state_.plan) && i < rebuild.reports.size(); ++i) {
    const KeyReport& report = *rebuild.reports[i];
    const Step after = report.newest_snapshot;
    if (after == 0 || after - 1 > rebuild.target) continue;
    if (rebuild.setter >= 0 && after - 1 <= rebuild.start) continue;
    rebuild.start = after - 1;
    rebuild.setter = places().RankOf(PlaceAt(i));
    rebuild.is_exact = rebuild.start == rebuild.target &&
                       std::ranges::find(report.snapshots, after) != std::end(report.snapshots);
  }
  if (rebuild.setter < 0) return BeginGiving();
  rebuild.phase = Phase::kSetting;
  return Answer(*places().OfRank(rebuild.setter), {What::kSet, rebuild.start, rebuild.target});
}

Sends RebuildingKey::BeginGiving() {
  KeyRebuild& rebuild = state_.rebuild;
  // Nobody has ended a step: there is no more than what was set.
  if (rebuild.target == 0) return BeginRedo();
  rebuild.phase = Phase::kGiving;
  for (size_t i = 0; i < rebuild.reports.size(); ++i) {
    const KeyReport& report = *rebuild.reports[i];
    if (report.done != rebuild.target || !report.has_reply) continue;
    rebuild.giver = places().RankOf(PlaceAt(i));
    // Its report may be on the way still.
    if (!rebuild.asks[i].has_value()) return {};
    return Answer(PlaceAt(i), {What::kGive, rebuild.target, rebuild.target});
  }
  return Fail(Aborted(
      "it stands at step %d, of which no worker that is left can give the reply, and the pushes "
      "that led to it are lost with a worker; go on from a checkpoint",
      rebuild.target));
}

Sends RebuildingKey::OnGiven(NodeId from, const Frame& frame, Rank rank) {
  const FrameHeader& header = frame.header;
  KeyRebuild& rebuild = state_.rebuild;
  const Sends taken = {{from, Frame{shard_.AnswerHeader(header, FrameType::kReply), {}}}};
  if (rank != rebuild.giver || header.step != rebuild.target) return NotYet(from, header);
  if (rebuild.phase == Phase::kRedoing) return taken;  // its answer was lost
  if (rebuild.phase != Phase::kGiving) return NotYet(from, header);
  if (const absl::Status intact = CheckPayload(frame); !intact.ok()) {
    return shard_.Refuse(from, header, intact);
  }
  Frame own = frame;
  Own(&own);
  const absl::StatusOr<GivenReply> given = DecodeGivenReply(own.payload.span());
  absl::Status status = given.status();
  const bool is_refused = given.ok() && given->is_refusal;
  if (given.ok() && !is_refused && given->step > rebuild.target) {
    status = InvalidArgument("a reply of step %d", given->step);
  }
  if (status.ok() && !is_refused) {
    DenseState estimate = rebuild.is_exact ? DenseState() : state_.dense;
    status = rebuild.is_exact ? CheckGiven(*state_.plan, *given)
                              : EstimateFrom(*state_.plan, *given, &estimate);
    if (status.ok() && !rebuild.is_exact) state_.dense = std::move(estimate);
  }
  if (is_refused || !status.ok()) {
    LogWarning("tensor '%s': worker %d cannot give its reply of step %d (%s)", state_.plan->name,
               rank, rebuild.target, is_refused ? "it does not have it" : status.message());
    // Another may.
    rebuild.reports[IndexOf(*places().OfRank(rank))]->has_reply = false;
    Sends sends = taken;
    for (Outgoing& send : BeginGiving()) sends.push_back(std::move(send));
    return sends;
  }
  state_.dense.last_step = rebuild.target;
  DenseKey(*state_.plan, &state_.dense, &shard_).KeepReply(*given);
  WriteRebuild(shard_.options.history, state_.plan->entry.key, "estimate", rebuild.start,
               rebuild.target);
  if (HasState(*state_.plan) && !rebuild.is_exact) {
    ++shard_.stats.estimated;
    LogWarning(
        "tensor '%s' is estimated: a worker was lost with its server; it goes on at step %d with "
        "the weights that workers have, without what was left to be sent of replies, and with a "
        "rule's moments as of step %d",
        state_.plan->name, rebuild.target, rebuild.start);
  }
  rebuild.start = rebuild.target;  // no push is made again
  Sends sends = taken;
  for (Outgoing& send : BeginRedo()) sends.push_back(std::move(send));
  return sends;
}

Sends RebuildingKey::BeginRedo() {
  KeyRebuild& rebuild = state_.rebuild;
  rebuild.phase = Phase::kRedoing;
  Sends sends = EndIfDone();
  if (!rebuild.is_over()) return AnswerAll({What::kRedo, rebuild.start, rebuild.target});
  return sends;
}

// Returns whether an init that came before a step has not been repeated.
bool RebuildingKey::IsInitDue(Step before) const {
  const uint32_t last =
      state_.dense.init_root == state_.rebuild.inits_root ? state_.dense.last_init : 0;
  return std::ranges::any_of(state_.rebuild.inits, [&](const LoggedInit& init) {
    return init.after < before && init.request > last;
  });
}

Sends RebuildingKey::EndIfDone() {
  KeyRebuild& rebuild = state_.rebuild;
  const bool is_done = rebuild.phase == Phase::kRedoing &&
                       state_.dense.last_step >= rebuild.target && !IsInitDue(kMaxStep + 1);
  if (!is_done) return {};
  // Those that had pushed the next step already push it again, also when they are leaving.
  for (size_t i = 0; i < rebuild.reports.size(); ++i) {
    if (!rebuild.reports[i].has_value() || rebuild.reports[i]->open <= rebuild.target) continue;
    state_.dense.pushed_before.push_back(places().RankOf(PlaceAt(i)));
  }
  return End();
}

void RebuildingKey::ExpectAllAgain() {
  state_.dense.pushed_before.clear();
  for (size_t i = 0; i < places().size(); ++i) {
    state_.dense.pushed_before.push_back(places().RankOf(PlaceAt(i)));
  }
}

Sends RebuildingKey::DecideBroadcast() {
  KeyRebuild& rebuild = state_.rebuild;
  BroadcastState& state = state_.broadcast;
  Step latest = 0;  // the last value that was in force
  for (const auto& report : rebuild.reports) {
    latest = std::max({latest, report->done, report->keeps_value});
  }
  BroadcastValue before;
  for (size_t i = 0; i < rebuild.reports.size(); ++i) {
    const KeyReport& report = *rebuild.reports[i];
    const Rank rank = places().RankOf(PlaceAt(i));
    const bool has_it = report.keeps_value == latest || (report.is_root && report.open == latest);
    if (latest != 0 && has_it) rebuild.setter = rank;
    // The root of a value that another has replaced may still ask whether it was in force.
    if (report.is_root && report.open < latest) before = {.step = report.open, .root = rank};
  }
  const bool is_lacked = std::ranges::any_of(
      rebuild.reports, [latest](const auto& one) { return one->done < latest; });
  const bool is_set_again = is_lacked && rebuild.setter >= 0;
  // Nobody waits for a worker that lacks a value of before, or one that nobody can give any more.
  const Step stands_at = is_set_again ? latest - 1 : latest;
  for (size_t i = 0; i < rebuild.reports.size(); ++i) {
    state.NoteHas(PlaceAt(i), std::max(rebuild.reports[i]->done, stands_at));
    state.NoteFetch(PlaceAt(i), rebuild.reports[i]->done);
  }
  // A newcomer that has not asked yet where the key stands is to stand where all others stood at
  // the boundary. Who has begun a broadcast since stood at the step before it.
  std::optional<Step> stood_at;
  for (const auto& report : rebuild.reports) {
    if (report->done == 0 && report->open == 0) continue;
    const Step at = report->open != 0 ? report->open - 1 : report->done;
    stood_at = std::min(stood_at.value_or(at), at);
  }
  for (size_t i = 0; i < rebuild.reports.size(); ++i) {
    const KeyReport& report = *rebuild.reports[i];
    if (report.done == 0 && report.open == 0) state.stood_at[i] = stood_at;
  }
  // After the facts of the places, of which it counts those that are behind.
  BroadcastValue value = {.step = stands_at};
  if (before.step == value.step) std::swap(value, before);
  state.SetValue(std::move(value));
  state.before = std::move(before);
  if (!is_set_again) {
    return End();
  }
  rebuild.phase = Phase::kSetting;
  rebuild.start = rebuild.target = latest;
  return Answer(*places().OfRank(rebuild.setter), {What::kSet, latest, latest});
}

// ---- other frames

Sends RebuildingKey::NotYet(NodeId from, const FrameHeader& header) {
  return shard_.Refuse(
      from, header,
      Unavailable("tensor '%s' is being rebuilt after its server was lost", state_.plan->name));
}

Sends RebuildingKey::OnFrame(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const absl::StatusOr<Place> place = shard_.PlaceOf(places(), from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const Rank rank = places().RankOf(*place);
  if (state_.rebuild.phase == Phase::kGone) {
    return shard_.Refuse(from, header,
                         Aborted("tensor '%s': what exchanged it was closed in another worker, and "
                                 "its server was lost since",
                                 state_.plan->name));
  }
  if (header.type == FrameType::kInit) return OnInit(from, frame, rank);
  const bool is_redo = is_dense() && state_.rebuild.phase == Phase::kRedoing;
  return is_redo ? OnDense(from, frame) : NotYet(from, header);
}

Sends RebuildingKey::OnDense(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  DenseKey key(*state_.plan, &state_.dense, &shard_);
  if (header.step > state_.rebuild.target || IsInitDue(header.step)) return NotYet(from, header);
  if (header.type == FrameType::kProbe) return key.OnProbe(from, header);
  if (header.type != FrameType::kPush) return NotYet(from, header);
  if (!state_.dense.round.is_open()) ExpectAllAgain();
  Sends sends = key.OnPush(from, frame);
  FaultPoint("redo.half");
  for (Outgoing& send : EndIfDone()) sends.push_back(std::move(send));
  return sends;
}

Sends RebuildingKey::OnInit(NodeId from, const Frame& frame, Rank rank) {
  const FrameHeader& header = frame.header;
  KeyRebuild& rebuild = state_.rebuild;
  const auto acknowledged = [&] {
    return Sends{{from, Frame{shard_.AnswerHeader(header, FrameType::kReply), {}}}};
  };
  if (!is_dense()) {
    const bool is_awaited =
        rebuild.phase == Phase::kSetting && rank == rebuild.setter && header.step == rebuild.start;
    if (!is_awaited) return NotYet(from, header);
    Sends sends = BroadcastKey(*state_.plan, &state_.broadcast, &shard_).OnInit(from, frame);
    if (state_.broadcast.value.step == header.step) {
      for (Outgoing& send : End()) sends.push_back(std::move(send));
    }
    return sends;
  }
  if (header.part == StatePart::kSnapshot) {
    if (rank != rebuild.setter || header.step != rebuild.start) return NotYet(from, header);
    const bool is_set = rebuild.phase == Phase::kGiving || rebuild.phase == Phase::kRedoing;
    if (is_set) return acknowledged();  // its answer was lost
    if (rebuild.phase != Phase::kSetting) return NotYet(from, header);
    if (const absl::Status intact = CheckPayload(frame); !intact.ok()) {
      return shard_.Refuse(from, header, intact);
    }
    const absl::Status set =
        ApplySnapshot(*state_.plan, shard_.options.quality, frame.payload.span(), &state_.dense);
    if (!set.ok() || state_.dense.last_step != rebuild.start) {
      return Fail(Aborted("the snapshot of worker %d is not one of step %d: %s", rank,
                          rebuild.start, set.message()));
    }
    // Nobody repeats what the root of an older snapshot had set, whose rank another worker may
    // have.
    if (rebuild.is_estimate && state_.dense.init_root != rebuild.inits_root) {
      state_.dense.init_root = -1;
      state_.dense.last_init = 0;
    }
    FaultPoint("init.half");
    WriteRebuild(shard_.options.history, header.key, "snapshot", header.step, rebuild.target);
    Sends sends = acknowledged();
    for (Outgoing& send : rebuild.is_estimate ? BeginGiving() : BeginRedo()) {
      sends.push_back(std::move(send));
    }
    return sends;
  }
  if (header.part == StatePart::kReply) return OnGiven(from, frame, rank);
  // An init that the lost server had applied is repeated in its place among the steps.
  const bool is_known = std::ranges::any_of(rebuild.inits, [&](const LoggedInit& init) {
    return init.request >= header.request && init.after <= state_.dense.last_step;
  });
  if (rebuild.phase != Phase::kRedoing || rank != rebuild.inits_root || !is_known) {
    return NotYet(from, header);
  }
  // The steps that have followed are not made again, so a part of the state that was set before
  // them is over. A rule is still in force.
  const bool is_over = rebuild.is_estimate && header.part != StatePart::kRule &&
                       header.step < state_.dense.last_step;
  Sends sends;
  if (is_over) {
    state_.dense.init_root = rank;
    state_.dense.last_init = std::max(state_.dense.last_init, header.request);
    sends = acknowledged();
  } else {
    sends = DenseKey(*state_.plan, &state_.dense, &shard_).OnInit(from, frame);
  }
  // One that had no answer yet may be wrong; its worker gets the error, and nobody waits for it.
  const FrameHeader& answer = sends.front().frame.header;
  if (answer.type == FrameType::kError && CheckPayload(frame).ok()) {
    std::erase_if(rebuild.inits,
                  [&](const LoggedInit& init) { return init.request == header.request; });
  }
  for (Outgoing& send : EndIfDone()) sends.push_back(std::move(send));
  return sends;
}

}  // namespace bdn
