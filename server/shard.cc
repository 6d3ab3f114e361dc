#include "server/shard.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace bdn {

Sends ServerShard::SetMembership(std::shared_ptr<const Membership> membership) {
  if (membership->epoch <= context_.membership->epoch) return {};
  context_.SetMembership(std::move(membership));
  std::erase_if(context_.leaving,
                [this](Rank rank) { return !context_.everyone->OfRank(rank).has_value(); });
  Sends sends;
  for (auto& [key, state] : keys_) {
    // The rounds close without an answer: a worker's probe is answered with the missing ranks, its
    // own among them, and it sends its push again under the new epoch.
    Sends of_key = Counted(&state, [&, &state = state] {
      // Of a key that is gone nobody reports again.
      const bool is_gone = state.rebuild.phase == KeyRebuild::Phase::kGone;
      if (!state.rebuild.is_over() && !is_gone) {
        RebuildingKey(&state, &context_).Begin();
        return Sends();
      }
      if (state.plan->entry.kind == KeyKind::kDense) {
        state.dense.SetRoster(context_.PlacesOf(state.plan->entry.ranks));
        return Sends();
      }
      if (state.plan->entry.kind == KeyKind::kRows) {
        state.rows.SetRoster(context_.PlacesOf(state.plan->entry.ranks));
        return Sends();
      }
      state.broadcast.SetRoster(context_.PlacesOf(state.plan->entry.ranks));
      return BroadcastKey(*state.plan, &state.broadcast, &context_).OnRoster();
    });
    for (Outgoing& send : of_key) sends.push_back(std::move(send));
  }
  return sends;
}

template <typename Change>
Sends ServerShard::Counted(KeyState* state, const Change& change) {
  const uint64_t before = held_.total();
  // Subtracting and adding one key's bytes keeps the sum right without a pass over all keys.
  held_ -= HeldBy(*state);
  Sends sends = change();
  held_ += HeldBy(*state);
  if (context_.options.budget != nullptr) context_.options.budget->Change(before, held_.total());
  most_held_ = std::max(most_held_, held_.total());
  return sends;
}

Sends ServerShard::SetLeaving(std::vector<Rank> ranks) {
  context_.leaving = std::move(ranks);
  Sends sends;
  for (auto& [key, state] : keys_) {
    if (state.rows.round.is_open()) {
      RowKey rows(*state.plan, &state.rows, &context_);
      for (Outgoing& send : Counted(&state, [&] { return rows.OnLeaving(); })) {
        sends.push_back(std::move(send));
      }
    }
    // Of a key that is rebuilt all push again what they had pushed, also those that are leaving.
    if (!state.dense.round.is_open() || !state.rebuild.is_over()) continue;
    DenseKey dense(*state.plan, &state.dense, &context_);
    for (Outgoing& send : Counted(&state, [&] { return dense.OnLeaving(); })) {
      sends.push_back(std::move(send));
    }
  }
  return sends;
}

void ServerShard::AddKey(std::shared_ptr<const KeyPlan> plan, bool is_rebuilt) {
  KeyState& state = keys_[plan->entry.key];
  // The catalogue may tell of a key again; its state must survive that.
  if (state.plan != nullptr) return;
  if (plan->entry.kind == KeyKind::kDense) {
    state.dense.parts = MakeStateParts(*plan);
    state.dense.SetRoster(context_.PlacesOf(plan->entry.ranks));
  } else if (plan->entry.kind == KeyKind::kRows) {
    state.rows = MakeRowState(*plan, context_.options.run_seed);
    state.rows.SetRoster(context_.PlacesOf(plan->entry.ranks));
  } else {
    state.broadcast.SetRoster(context_.PlacesOf(plan->entry.ranks));
  }
  state.plan = std::move(plan);
  if (!is_rebuilt) return;
  ++context_.stats.rebuilding;
  RebuildingKey(&state, &context_).Begin();
}

Sends ServerShard::RemoveKey(Key key) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return {};
  KeyState* const state = &found->second;
  const std::shared_ptr<const KeyPlan> plan = state->plan;
  Sends sends = Counted(state, [&] {
    Sends told;
    if (plan->entry.kind == KeyKind::kDense) {
      told = DenseKey(*plan, &state->dense, &context_).OnRetired();
    } else if (plan->entry.kind == KeyKind::kRows) {
      told = RowKey(*plan, &state->rows, &context_).OnRetired();
    }
    const KeyRebuild::Phase phase = state->rebuild.phase;
    const bool is_under_way =
        phase != KeyRebuild::Phase::kOver && phase != KeyRebuild::Phase::kGone;
    if (is_under_way) --context_.stats.rebuilding;
    // Inside Counted, so that the key's bytes are subtracted.
    *state = {};
    return told;
  });
  keys_.erase(found);
  return sends;
}

std::vector<NodeId> ServerShard::NodesOf(const std::vector<Rank>& ranks) const {
  const std::vector<NodeInfo>& workers = context_.membership->workers;
  std::vector<NodeId> nodes;
  for (const Rank rank : ranks) {
    const auto worker = std::ranges::lower_bound(workers, rank, {}, &NodeInfo::rank);
    // The round of a key that is rebuilt may be of a roster of before.
    if (worker != workers.end() && worker->rank == rank) nodes.push_back(worker->id);
  }
  return nodes;
}

std::vector<OpenRound> ServerShard::OpenRounds() const {
  std::vector<OpenRound> rounds;
  for (const auto& [key, state] : keys_) {
    const Round& round = state.dense.round;
    if (round.is_open()) {
      rounds.push_back({key, round.step(), NodesOf(round.MissingRanks(PlaceAt(0)))});
    }
    const Round& of_rows = state.rows.round.roster();
    if (of_rows.is_open()) {
      rounds.push_back({key, of_rows.step(), NodesOf(of_rows.MissingRanks(PlaceAt(0)))});
    }
  }
  return rounds;
}

std::vector<TableCounts> ServerShard::CountTables() const {
  std::map<std::string, TableCounts> tables;
  for (const auto& [key, state] : keys_) {
    if (state.plan == nullptr || state.plan->rows == nullptr) continue;
    for (const TableCounts& of : state.rows.CountTables(*state.plan->rows)) {
      const auto [all, is_first] = tables.try_emplace(of.table, of);
      if (!is_first) all->second += of;
    }
  }
  std::vector<TableCounts> counts;
  for (auto& [name, of] : tables) counts.push_back(std::move(of));
  return counts;
}

const KeyState* ServerShard::Find(Key key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second;
}

Sends ServerShard::OnFrame(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  if (header.sender != from) {
    // A forged sender gets no answer, because that would reach the node that it names.
    ++context_.stats.refused;
    return {};
  }
  const auto found = keys_.find(header.key);
  if (found == keys_.end()) {
    return context_.Refuse(from, header, WhyUnknown(header));
  }
  KeyState* state = &found->second;
  const bool is_dense = state->plan->entry.kind == KeyKind::kDense;
  return Counted(state, [&] {
    // Rows are never rebuilt: a server that gains a key of them from a lost one ends the job.
    const KeyPlan& plan = *state->plan;
    if (plan.entry.kind == KeyKind::kRows) {
      return OnRoundFrame(from, frame, plan, RowKey(plan, &state->rows, &context_));
    }
    RebuildingKey rebuilding(state, &context_);
    if (header.type == FrameType::kReport) return rebuilding.OnReport(from, frame);
    if (!state->rebuild.is_over()) return rebuilding.OnFrame(from, frame);
    if (!is_dense) return OnBroadcastFrame(from, frame, state);
    return OnRoundFrame(from, frame, plan, DenseKey(plan, &state->dense, &context_));
  });
}

// Returns why a key is not here. A worker may know a new catalogue or membership before this server
// does: then it is to try again. Otherwise the key will never be here.
absl::Status ServerShard::WhyUnknown(const FrameHeader& header) const {
  if (header.catalogue_version > context_.catalogue_version) {
    return Unavailable("catalogue version %d is not here yet (this server has %d)",
                       header.catalogue_version, context_.catalogue_version);
  }
  if (header.epoch > context_.membership->epoch) {
    return Unavailable("epoch %d is not known here yet; the membership is at epoch %d",
                       header.epoch, context_.membership->epoch);
  }
  return NotFound(
      "unknown key %s: it is not placed on this server, or all workers are done with "
      "its tensors",
      header.key.ToString());
}

template <typename KeyProtocol>
Sends ServerShard::OnRoundFrame(NodeId from, const Frame& frame, const KeyPlan& plan,
                                KeyProtocol key) {
  switch (frame.header.type) {
    case FrameType::kPush:
      return key.OnPush(from, frame);
    case FrameType::kProbe:
      return key.OnProbe(from, frame.header);
    case FrameType::kInit:
      return key.OnInit(from, frame);
    case FrameType::kFetch:
      return key.OnFetch(from, frame);
    default:
      return RefuseType(from, frame.header, plan);
  }
}

Sends ServerShard::OnBroadcastFrame(NodeId from, const Frame& frame, KeyState* state) {
  const FrameHeader& header = frame.header;
  const bool asks_position = header.type == FrameType::kFetch && frame.payload.empty() &&
                             header.part == StatePart::kPosition && header.request != 0 &&
                             header.num_elements == state->plan->entry.elements;
  if (asks_position) {
    return BroadcastKey(*state->plan, &state->broadcast, &context_).OnPosition(from, header);
  }
  const uint8_t legal = header.type == FrameType::kFetch ? kFlagUnwanted : 0;
  const bool is_about_dense = header.part != StatePart::kNone || header.element_offset != 0 ||
                              header.request != 0 || (header.flags & ~legal) != 0;
  if (is_about_dense) {
    return context_.Refuse(
        from, header,
        InvalidArgument("part, element_offset, request and flags of broadcast tensor '%s' are 0",
                        state->plan->name));
  }
  BroadcastKey key(*state->plan, &state->broadcast, &context_);
  switch (header.type) {
    case FrameType::kProbe:
      return key.OnProbe(from, header);
    case FrameType::kInit:
      return key.OnInit(from, frame);
    case FrameType::kFetch:
      return key.OnFetch(from, frame);
    default:
      return RefuseType(from, header, *state->plan);
  }
}

Sends ServerShard::RefuseType(NodeId from, const FrameHeader& header, const KeyPlan& plan) {
  return context_.Refuse(
      from, header,
      InvalidArgument("a %s frame does not go to %s tensor '%s'", FrameTypeName(header.type),
                      KeyKindName(plan.entry.kind), plan.name));
}

}  // namespace bdn
