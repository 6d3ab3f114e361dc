#include "server/rows/row_key.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "common/base/endian.h"
#include "common/base/fault_point.h"
#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "common/wire/program_steps.h"
#include "common/wire/row_block.h"
#include "common/wire/row_records.h"
#include "server/key_history.h"

namespace bdn {
namespace {

// These are as of a dense key.
constexpr Step kMaxStepsAhead = Step{1} << 20;
constexpr uint32_t kMaxRequestsAhead = 1u << 20;

using Kind = Contribution::Kind;

bool IsRetried(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsFailedPrecondition(status) ||
         absl::IsDataLoss(status) || absl::IsUnauthenticated(status);
}

// Returns whether a worker is not to get all means.
bool WantsSome(const WantedRows& wanted) {
  return std::ranges::any_of(wanted,
                             [](const WantedIds& of) { return of.none || !of.ids.empty(); });
}

bool WantsAny(const WantedRows& wanted) {
  return std::ranges::any_of(wanted, [](const WantedIds& of) { return !of.ids.empty(); });
}

}  // namespace

RowState MakeRowState(const KeyPlan& plan, uint64_t run_seed) {
  const RowLink& link = *plan.rows;
  RowState state;
  state.tables.reserve(link.tables.size());
  for (const RowLink::Table& table : link.tables) {
    state.tables.emplace_back(
        InitialValues{.spec = table.spec, .run_seed = run_seed, .name_hash = table.name_hash},
        plan.row_rule.get(), link.width, link.rule.MomentFloats(link.width));
  }
  state.became.resize(link.tables.size());
  return state;
}

std::vector<TableCounts> RowState::CountTables(const RowLink& link) const {
  std::vector<TableCounts> counts;
  if (link.rule.is_mean()) return counts;
  for (size_t i = 0; i < tables.size(); ++i) {
    TableCounts& of = counts.emplace_back();
    of = {.table = link.tables[i].name,
          .rows = became[i],
          .bytes = tables[i].bytes(),
          .updates = tables[i].updates()};
    of.rows.held = tables[i].rows();
  }
  return counts;
}

void RowState::SetRoster(std::shared_ptr<const Places> now) {
  for (const Rank rank : round.roster().RanksHere()) {
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
  const auto is_out = [&](const auto& of) { return !places->OfNode(of.first).has_value(); };
  absl::erase_if(wanted, is_out);
  absl::erase_if(last_records, is_out);
  if (init_root >= 0 && is_gone(init_root)) {
    init_root = -1;
    last_init = 0;  // another worker counts its requests anew
  }
}

size_t RowState::row_bytes() const {
  size_t bytes = 0;
  for (const RowTable& table : tables) bytes += table.bytes();
  return bytes;
}

size_t RowState::reply_bytes() const {
  size_t bytes = wanted_bytes + all_means.size();
  for (const auto& sums : means) bytes += sums.has_value() ? sums->bytes() : 0;
  return bytes;
}

uint64_t RowState::rows() const {
  uint64_t rows = 0;
  for (const RowTable& table : tables) rows += table.rows();
  return rows;
}

FrameHeader RowKey::PushOf(Step step) const {
  return PushHeader(plan_.entry.key, step, plan_.entry.elements);
}

// ---- Checks

absl::Status RowKey::CheckStep(const FrameHeader& header) const {
  if (header.step == 0) return InvalidArgument("steps count from 1");
  if (header.step > state_.last_step + kMaxStepsAhead) {
    return InvalidArgument("step %d is too far ahead of step %d", header.step, state_.last_step);
  }
  return absl::OkStatus();
}

absl::Status RowKey::CheckElements(const FrameHeader& header) const {
  if (header.num_elements == plan_.entry.elements) return absl::OkStatus();
  return InvalidArgument("table '%s' key %s has rows of %d elements in all, not %d", plan_.name,
                         header.key.ToString(), plan_.entry.elements, header.num_elements);
}

RowLimits RowKey::LimitsOf(size_t table, size_t row_bytes, size_t most_wanted) const {
  return {.row_bytes = row_bytes,
          .bucket = link_.bucket,
          .buckets = link_.buckets,
          .rows = link_.tables[table].spec.rows,
          .most_wanted = most_wanted,
          .takes_none = most_wanted != 0 && link_.rule.is_mean()};
}

template <typename Take>
absl::Status RowKey::ReadBlocks(ByteSpan payload, size_t row_bytes, size_t most_wanted,
                                const Take& take) const {
  BDN_ASSIGN_OR_RETURN(const RowParts parts, ReadRowParts(payload, link_.tables.size()));
  RowBlock block;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].has_value()) continue;
    const RowLimits limits = LimitsOf(i, row_bytes, most_wanted);
    const std::string name = "table '" + link_.tables[i].name + "'";
    BDN_RETURN_IF_ERROR(Annotate(ReadRowBlock(*parts[i], limits, &block), name));
    BDN_RETURN_IF_ERROR(Annotate(take(i, &block), name));
  }
  return absl::OkStatus();
}

RowKey::PushCheck RowKey::CheckPush(const Frame& push, Place place, RowPush* rows) const {
  const FrameHeader& header = push.header;
  const Rank rank = state_.places->RankOf(place);
  const auto bad = [](absl::Status why) { return PushCheck{.status = std::move(why)}; };
  const auto fails_round = [](absl::Status why) {
    return PushCheck{.status = std::move(why), .fails_round = true};
  };
  if (const absl::Status fits = CheckElements(header); !fits.ok()) return bad(fits);
  if (push.payload.size() > kMaxRowsPayload) {
    return bad(InvalidArgument("table '%s' key %s takes at most %d bytes, not %d", plan_.name,
                               header.key.ToString(), kMaxRowsPayload, push.payload.size()));
  }
  rows->wanted.assign(link_.tables.size(), {});
  if (HasPayload(header.flags)) {
    const absl::Status intact = CheckPayload(push);
    if (!intact.ok()) return bad(intact);
    if (header.codec != static_cast<uint8_t>(link_.push->id())) {
      return fails_round(
          InvalidArgument("table '%s' step %d: rank %d pushed codec %d, where %s was declared",
                          plan_.name, header.step, rank, header.codec, link_.push->spec()));
    }
    // All of a reply must fit into a frame.
    const size_t most_wanted = kMaxRowsPayload / link_.pull_row_bytes;
    size_t wanted = 0;
    const absl::Status valid = ReadBlocks(
        push.payload.span(), link_.push_row_bytes, most_wanted,
        [&](size_t i, RowBlock* block) -> absl::Status {
          for (size_t at = 0; at < block->rows.size(); at += link_.push_row_bytes) {
            BDN_RETURN_IF_ERROR(link_.push->Validate(block->rows.subspan(at, link_.push_row_bytes),
                                                     link_.width, DType::kFloat32));
          }
          wanted += block->wanted.size();
          if (wanted > most_wanted) return InvalidArgument("%d rows are wanted", wanted);
          rows->wanted[i] = {std::move(block->wanted), block->wants_none};
          return absl::OkStatus();
        });
    if (!valid.ok()) {
      return bad(Annotate(valid, absl::StrFormat("key %s step %d from rank %d",
                                                 header.key.ToString(), header.step, rank)));
    }
    rows->payload = push.payload;
  } else if (!push.payload.empty()) {
    return bad(InvalidArgument("a push that is absent or non-finite carries no payload"));
  }
  const Round& round = state_.round.roster();
  const absl::Status same = CheckSameProgramSteps(plan_.name, header.step, round.program_place(),
                                                  {.rank = rank, .steps = header.program_steps});
  if (!same.ok()) return fails_round(same);
  const Rank other = round.FirstRank();
  if (other < 0) return {};
  const float others = round.learning_rate();
  if (std::bit_cast<uint32_t>(others) == std::bit_cast<uint32_t>(header.learning_rate)) return {};
  return fails_round(
      InvalidArgument("table '%s' step %d: rank %d has learning rate %g and rank %d has %g",
                      plan_.name, header.step, other, others, rank, header.learning_rate));
}

absl::Status RowKey::CheckNobodyLeaves(Step step, Rank pusher) const {
  for (const Rank rank : shard_.leaving) {
    const std::vector<Rank>& before = state_.pushed_before;
    const bool pushes_again = std::ranges::find(before, rank) != before.end();
    if (rank == pusher || pushes_again || state_.round.roster().HasRank(rank)) continue;
    return Aborted(
        "table '%s' step %d: worker %d is leaving the job and pushes no more: all workers "
        "must step it equally often",
        plan_.name, step, rank);
  }
  return absl::OkStatus();
}

absl::Status RowKey::CheckBound(size_t table, const RowTable::Stepped& stepped, Step step) const {
  const TableSpec& spec = link_.tables[table].spec;
  if (spec.max_rows == 0 || spec.evict != TableSpec::Evict::kNone) return absl::OkStatus();
  const uint64_t most = spec.max_rows / link_.buckets;
  const size_t rows = state_.tables[table].rows();
  if (stepped.added == 0 || rows + stepped.added <= most) return absl::OkStatus();
  return ResourceExhausted(
      "table '%s' step %d: %d new rows do not fit beside the %d of bucket %d, which may have %d: "
      "max_rows=%d divided by %d buckets; set a higher max_rows, or evict=\"lru\" or \"lfu\" to "
      "make room, or ttl or admit to hold fewer",
      link_.tables[table].name, step, stepped.added, rows, link_.bucket, most, spec.max_rows,
      link_.buckets);
}

absl::Status RowKey::CheckMemory(size_t more, Step step, const std::string& why) const {
  const MemoryBudget* const budget = shard_.options.budget;
  if (more == 0 || budget == nullptr || budget->Allows(more)) return absl::OkStatus();
  return ResourceExhausted(
      "table '%s' step %d: %s take %d bytes more, and this server holds all of the %d bytes that "
      "its setting max-bytes allows, %d rows of this bucket among them: raise it, start more "
      "servers, or have tables hold fewer rows by admit, max_rows or ttl",
      plan_.name, step, why, more, budget->max_bytes(), state_.rows());
}

// ---- Rounds

Sends RowKey::OnPush(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  StageLaps laps(shard_.options.stages,
                 {.key = plan_.entry.key, .step = header.step, .peer = from});
  const absl::Status step = CheckStep(header);
  if (!step.ok()) return shard_.Refuse(from, header, step);
  // Before the epoch is checked, as of a dense key.
  if (header.step <= state_.last_step) return AnswerClosed(from, header);
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const Round& round = state_.round.roster();
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
    return FailRound(
        std::max(header.step, round.step()),
        Aborted("table '%s': rank %d is at step %d and rank %d at step %d: all workers "
                "must step it equally often",
                plan_.name, round.FirstRank(), round.step(), rank, header.step));
  }
  // Held until the round closes, and read twice: the sender must not be able to change it, nor a
  // small payload keep a large block of the transport's.
  Frame push = frame;
  if (!push.payload.empty() && push.payload.size() <= kMaxRowsPayload) {
    push.payload = Buffer::CopyOf(frame.payload.span());
  }
  RowPush rows;
  PushCheck check = CheckPush(push, *place, &rows);
  if (check.fails_round) return FailRound(header.step, check.status);
  if (check.status.ok()) check.status = CheckNobodyLeaves(header.step, rank);
  if (!check.status.ok()) return shard_.Refuse(from, header, check.status);
  check.status = CheckMemory(push.payload.size() + WantedBytes(rows.wanted), header.step,
                             absl::StrFormat("the push of rank %d would", rank));
  if (!check.status.ok()) return FailRound(header.step, check.status);
  return Accept(push, *place, std::move(rows), &laps);
}

Sends RowKey::Accept(const Frame& frame, Place place, RowPush rows, StageLaps* laps) {
  const FrameHeader& header = frame.header;
  RowRound& round = state_.round;
  if (!round.is_open()) round.Open(header.step, state_.places);
  const Kind kind = (header.flags & kFlagNonFinite) != 0 ? Kind::kNonFinite : Kind::kAbsent;
  const size_t bytes = rows.payload.size();
  round.Add(plan_, place, {kind, header.weight, header.learning_rate, header.program_steps, {}},
            std::move(rows));
  ++shard_.stats.pushes;
  shard_.stats.bytes_pushed += bytes;
  if (shard_.options.stages != nullptr) {
    round.roster().BeginHold(StageSpan(shard_.options.stages), place, bytes);
  }
  laps->End(Stage::kSum, 1, bytes);
  if (round.roster().IsComplete()) return CloseRound(laps);
  FaultPoint("push.held");
  return {};
}

absl::StatusOr<uint8_t> RowKey::StepTables(StageLaps* laps) {
  RowRound& round = state_.round;
  const Round& roster = round.roster();
  if (roster.has_nonfinite()) return kFlagNonFinite;
  if (round.is_all_absent()) return kFlagAbsent;
  const float rate = roster.learning_rate();
  if (rate < 0) {
    return InvalidArgument("table '%s' step %d: learning rate %g is below zero", plan_.name,
                           roster.step(), rate);
  }
  const double weight = roster.total_weight();
  if (weight == 0) return link_.rule.is_mean() ? kFlagAbsent : 0;
  std::vector<std::optional<RowSums>> sums = round.Sum(link_);
  const auto inverse = static_cast<float>(1 / weight);
  bool is_finite = true;
  for (auto& sum : sums) is_finite = (!sum.has_value() || sum->Scale(inverse)) && is_finite;
  if (!is_finite) {
    // The other buckets make the step, so that it counts in this one, too.
    for (size_t i = 0; i < sums.size() && !link_.rule.is_mean(); ++i) {
      if (!sums[i].has_value()) continue;
      const size_t removed = state_.tables[i].CountSkipped();
      state_.became[i].removed += removed;
      shard_.stats.rows_removed += removed;
      shard_.stats.rows -= removed;
    }
    return kFlagNonFinite;
  }
  laps->End(Stage::kSum, 0, 0);
  if (link_.rule.is_mean()) {
    state_.means = std::move(sums);
    BDN_ASSIGN_OR_RETURN(state_.all_means, EncodeMeans(WantedRows(link_.tables.size())));
    return 0;
  }
  std::vector<std::optional<RowTable::Stepped>> stepped(sums.size());
  size_t more = 0;
  uint64_t fresh = 0, candidates = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!sums[i].has_value()) continue;
    const RowTable& table = state_.tables[i];
    stepped[i] = table.Step(&*sums[i], rate);
    fresh += stepped[i]->added;
    candidates += stepped[i]->added_candidates;
    more += table.BytesOfNew(stepped[i]->added, stepped[i]->added_candidates);
    if (!stepped[i]->is_finite) {
      return InvalidArgument(
          "table '%s' step %d: rows are no longer finite with learning rate %g; nothing was "
          "changed",
          link_.tables[i].name, roster.step(), rate);
    }
    BDN_RETURN_IF_ERROR(CheckBound(i, *stepped[i], roster.step()));
  }
  std::string news = absl::StrFormat("%d new rows", fresh);
  if (candidates > 0) absl::StrAppendFormat(&news, " and %d new ids not admitted yet", candidates);
  BDN_RETURN_IF_ERROR(CheckMemory(more, roster.step(), news));
  for (size_t i = 0; i < stepped.size(); ++i) {
    if (!stepped[i].has_value()) continue;
    shard_.stats.rows_updated += stepped[i]->ids.size();
    shard_.stats.rows_added += stepped[i]->added;
    shard_.stats.rows_not_admitted += stepped[i]->candidates.size();
    const size_t removed = state_.tables[i].Take(*stepped[i]);
    shard_.stats.rows_removed += removed;
    shard_.stats.rows += stepped[i]->added - removed;
    state_.became[i] += {.added = stepped[i]->added,
                         .removed = removed,
                         .not_admitted = stepped[i]->candidates.size()};
  }
  laps->End(Stage::kRule, 1, 0);
  return 0;
}

Sends RowKey::CloseRound(StageLaps* laps) {
  RowRound& round = state_.round;
  round.roster().EndHold(plan_.entry.key, shard_.options.waits);
  const Step step = round.roster().step();
  // All workers have pushed this step, so none asks for the reply before any more.
  state_.wanted.clear();
  state_.wanted_bytes = 0;
  state_.means.clear();
  state_.all_means = Buffer();
  const absl::StatusOr<uint8_t> flags = StepTables(laps);
  if (!flags.ok()) return FailRound(step, flags.status());
  ++shard_.stats.rounds;
  if ((*flags & kFlagNonFinite) != 0) ++shard_.stats.rounds_nonfinite;
  state_.last_step = state_.replied_step = step;
  state_.reply_flags = *flags;
  state_.last_failure = Frame();
  Sends sends;
  for (size_t i = 0; i < state_.places->size(); ++i) {
    const NodeId node = state_.places->NodeOf(PlaceAt(i));
    WantedRows wanted = round.TakeWanted(PlaceAt(i));
    state_.wanted_bytes += WantedBytes(wanted);
    state_.wanted[node] = std::move(wanted);
    sends.push_back({node, ReplyTo(node, step)});
    shard_.stats.bytes_replied += sends.back().frame.payload.size();
  }
  laps->End(Stage::kEncode, 1, 0);
  FrameHeader closed = shard_.AnswerHeader(PushOf(step), FrameType::kReply);
  closed.flags = *flags;
  WriteRound(shard_.options.history, *state_.places, plan_.entry.ranks, Frame{closed, {}});
  round.Close();
  state_.pushed_before.clear();
  FaultPoint("round.closed");
  return sends;
}

absl::StatusOr<Buffer> RowKey::EncodeRows(const WantedRows& wanted) const {
  std::vector<std::optional<size_t>> lengths(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<uint64_t>& ids = wanted[i].ids;
    if (!ids.empty()) lengths[i] = RowAnswerBytes(ids.size(), link_.pull_row_bytes);
  }
  const RowPayload payload = MakeRowPayload(lengths);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].ids.empty()) continue;
    MutableByteSpan out = WriteRowAnswer(wanted[i].ids.size(), payload.parts[i]);
    BDN_RETURN_IF_ERROR(state_.tables[i].ReadAll(
        wanted[i].ids, [&](std::span<const float> row) { return EncodeRow(row, &out); }));
  }
  return payload.bytes;
}

absl::Status RowKey::EncodeRow(std::span<const float> row, MutableByteSpan* out) const {
  // The codec rounds to nearest, so that its draw does not matter.
  BDN_RETURN_IF_ERROR(
      link_.pull->Encode({row.data(), DType::kFloat32, row.size()}, 1.0f, Draw(), *out).status());
  *out = out->subspan(link_.pull_row_bytes);
  return absl::OkStatus();
}

absl::StatusOr<Buffer> RowKey::EncodeMeans(const WantedRows& wanted) const {
  std::vector<std::vector<size_t>> order(wanted.size());
  std::vector<std::vector<uint64_t>> ids(wanted.size());
  std::vector<std::optional<size_t>> lengths(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].ids.empty()) {
      lengths[i] = RowAnswerBytes(wanted[i].ids.size(), link_.pull_row_bytes);
    } else if (!wanted[i].none && state_.means[i].has_value()) {
      order[i] = state_.means[i]->Rising();
      for (const size_t place : order[i]) ids[i].push_back(state_.means[i]->ids()[place]);
      lengths[i] = RowBlockBytes(ids[i], {}, link_.pull_row_bytes);
    }
  }
  const size_t bytes = RowPayloadBytes(lengths);
  if (bytes > kMaxRowsPayload) {
    return ResourceExhausted(
        "table '%s': the rows that all workers have pushed to bucket %d of %d take %d bytes, and a "
        "frame has at most %d: have the scheduler begin the job with a higher row-buckets",
        plan_.name, link_.bucket, link_.buckets, bytes, kMaxRowsPayload);
  }
  const RowPayload payload = MakeRowPayload(lengths);
  const std::vector<float> zeros(link_.width);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!lengths[i].has_value()) continue;
    if (wanted[i].ids.empty()) {
      MutableByteSpan out = WriteRowBlock(ids[i], {}, payload.parts[i]);
      for (const size_t place : order[i]) {
        BDN_RETURN_IF_ERROR(EncodeRow(std::as_const(*state_.means[i]).at(place), &out));
      }
      continue;
    }
    MutableByteSpan out = WriteRowAnswer(wanted[i].ids.size(), payload.parts[i]);
    for (const uint64_t id : wanted[i].ids) {
      const std::span<const float> mean =
          state_.means[i].has_value() ? state_.means[i]->Find(id) : std::span<const float>();
      BDN_RETURN_IF_ERROR(EncodeRow(mean.empty() ? std::span<const float>(zeros) : mean, &out));
    }
  }
  return payload.bytes;
}

// Returns the reply of the last step with a result to one worker. It is made anew each time, from
// the same rows.
Frame RowKey::ReplyTo(NodeId node, Step step) const {
  FrameHeader header = shard_.AnswerHeader(PushOf(step), FrameType::kReply);
  header.flags = state_.reply_flags;
  const auto wanted = state_.wanted.find(node);
  if (header.flags != 0) return Frame{header, {}};
  if (link_.rule.is_mean()) {
    const bool wants_some = wanted != state_.wanted.end() && WantsSome(wanted->second);
    absl::StatusOr<Buffer> means =
        wants_some ? EncodeMeans(wanted->second) : absl::StatusOr<Buffer>(state_.all_means);
    if (!means.ok()) return shard_.ErrorFrame(PushOf(step), means.status());
    if (means->empty()) {
      header.flags = kFlagUnwanted;
      return Frame{header, {}};
    }
    header.codec = static_cast<uint8_t>(link_.pull->id());
    return MakeFrame(header, *std::move(means), shard_.options.needs_checksums());
  }
  if (wanted == state_.wanted.end() || !WantsAny(wanted->second)) {
    header.flags = kFlagUnwanted;
    return Frame{header, {}};
  }
  absl::StatusOr<Buffer> payload = EncodeRows(wanted->second);
  if (!payload.ok()) return shard_.ErrorFrame(PushOf(step), payload.status());
  header.codec = static_cast<uint8_t>(link_.pull->id());
  return MakeFrame(header, *std::move(payload), shard_.options.needs_checksums());
}

Sends RowKey::FailRound(Step step, const absl::Status& why) {
  ++shard_.stats.rounds_failed;
  const RowRound failed = std::exchange(state_.round, RowRound());
  state_.pushed_before.clear();
  const absl::Status status = IsRetried(why) ? Aborted("%s", why.message()) : why;
  state_.last_step = step;
  state_.last_failure = shard_.ErrorFrame(PushOf(step), status);
  WriteFailed(shard_.options.history, plan_.entry.key, step, std::string(status.message()));
  Sends sends;
  if (failed.is_open() && failed.roster().step() != step) {
    sends = ToAll(shard_.ErrorFrame(PushOf(failed.roster().step()), status));
  }
  for (Outgoing& send : ToAll(state_.last_failure)) sends.push_back(std::move(send));
  return sends;
}

Sends RowKey::AnswerClosed(NodeId from, const FrameHeader& header) {
  const Frame& failure = state_.last_failure;
  const bool is_reply = state_.replied_step != 0 && header.step == state_.replied_step &&
                        state_.places->OfNode(from).has_value();
  const bool failed = failure.header.type == FrameType::kError && header.step > state_.replied_step;
  if (!is_reply && !failed) {
    return shard_.Refuse(from, header,
                         OutOfRange("step %d is over: table '%s' stands at step %d", header.step,
                                    plan_.name, state_.last_step));
  }
  ++shard_.stats.cached_replies;
  Frame answer = is_reply ? ReplyTo(from, header.step) : failure;
  answer.header.step = header.step;
  return {{from, std::move(answer)}};
}

Sends RowKey::OnProbe(NodeId from, const FrameHeader& header) {
  ++shard_.stats.probes;
  const absl::Status step = CheckStep(header);
  if (!step.ok()) return shard_.Refuse(from, header, step);
  if (header.step <= state_.last_step) return AnswerClosed(from, header);
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  const Round& round = state_.round.roster();
  if (header.step == round.step()) return shard_.Defer(from, header, round.MissingRanks(*place));
  Round empty;
  empty.Open(header.step, state_.places);
  return shard_.Defer(from, header, empty.MissingRanks(*place));
}

Sends RowKey::OnLeaving() {
  const Step step = state_.round.roster().step();
  constexpr Rank kNobody = -1;
  const absl::Status status = CheckNobodyLeaves(step, kNobody);
  if (status.ok()) return {};
  ++shard_.stats.rounds_failed;
  state_.round.Close();
  state_.pushed_before.clear();
  return ToAll(shard_.ErrorFrame(PushOf(step), status));
}

Sends RowKey::OnRetired() {
  shard_.stats.rows -= state_.rows();
  if (!state_.round.is_open()) return {};
  ++shard_.stats.rounds_failed;
  const Step step = state_.round.roster().step();
  return ToAll(shard_.ErrorFrame(
      PushOf(step), Aborted("table '%s' step %d: what exchanged it was closed, or collected by "
                            "Python, in all workers",
                            plan_.name, step)));
}

// ---- Rows set and told

Sends RowKey::OnInit(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  size_t table = 0;
  absl::Status status = CheckRowsHeader(header, "an init", &table);
  if (status.ok() && frame.payload.size() > kMaxRowsPayload) {
    status = InvalidArgument("rows of table '%s': at most %d bytes, not %d", plan_.name,
                             kMaxRowsPayload, frame.payload.size());
  }
  Frame init = frame;
  Own(&init);
  if (status.ok()) status = CheckPayload(init);
  if (status.ok()) {
    status = header.part == StatePart::kRecords ? TakeRecords(init, table)
                                                : TakeInit(init, state_.places->RankOf(*place));
  }
  if (!status.ok()) return shard_.Refuse(from, header, status);
  return {{from, Frame{shard_.AnswerHeader(header, FrameType::kReply), {}}}};
}

absl::Status RowKey::TakeInit(const Frame& frame, Rank rank) {
  const FrameHeader& header = frame.header;
  if (state_.init_root >= 0 && state_.init_root != rank) {
    return AlreadyExists("table '%s': rank %d has set rows, and now rank %d does: one rank only",
                         plan_.name, state_.init_root, rank);
  }
  // The number of an init, not its content, tells a repeat: rows may have been updated since.
  if (header.request <= state_.last_init) return absl::OkStatus();
  BDN_RETURN_IF_ERROR(CheckRequest(header, state_.last_init));
  struct Set {
    size_t table;
    std::vector<uint64_t> ids;
    std::vector<float> values;
  };
  std::vector<Set> sets;
  size_t more = 0;
  BDN_RETURN_IF_ERROR(
      ReadBlocks(frame.payload.span(), link_.width * sizeof(float), /*most_wanted=*/0,
                 [&](size_t i, RowBlock* block) -> absl::Status {
                   Set& set = sets.emplace_back();
                   set.table = i;
                   set.values.resize(block->ids.size() * link_.width);
                   DecodeFloats(block->rows, set.values);
                   for (size_t j = 0; j < set.values.size(); ++j) {
                     if (std::isfinite(set.values[j])) continue;
                     return InvalidArgument("row %d has an element that is not finite",
                                            block->ids[j / link_.width]);
                   }
                   if (link_.tables[i].spec.IsLimited()) {
                     return InvalidArgument(
                         "its rows are admitted, bounded or removed, so that they begin with the "
                         "values of its init, and none are set");
                   }
                   more += state_.tables[i].BytesOfNew(state_.tables[i].CountNew(block->ids), 0);
                   set.ids = std::move(block->ids);
                   return absl::OkStatus();
                 }));
  BDN_RETURN_IF_ERROR(CheckMemory(more, header.step, "the rows that are set"));
  const uint64_t before = state_.rows();
  for (const Set& set : sets) {
    for (size_t j = 0; j < set.ids.size(); ++j) {
      state_.tables[set.table].Set(set.ids[j],
                                   std::span(set.values).subspan(j * link_.width, link_.width));
    }
  }
  shard_.stats.rows += state_.rows() - before;
  state_.init_root = rank;
  state_.last_init = header.request;
  return absl::OkStatus();
}

absl::Status RowKey::CheckRowsHeader(const FrameHeader& header, const char* what,
                                     size_t* table) const {
  BDN_RETURN_IF_ERROR(CheckElements(header));
  const bool is_of_records = header.part == StatePart::kRecords;
  if (link_.rule.is_mean() || (!is_of_records && header.part != StatePart::kRows)) {
    return NotFound("table '%s' has no %s", plan_.name, StatePartName(header.part));
  }
  const uint64_t segment = header.element_offset / link_.width;
  const bool is_whole = header.element_offset % link_.width == 0 && segment < link_.tables.size();
  if (is_of_records ? !is_whole : header.element_offset != 0) {
    return InvalidArgument("%s of table '%s' is about element %d, where no table begins", what,
                           plan_.name, header.element_offset);
  }
  *table = static_cast<size_t>(segment);
  if (header.request == 0) return InvalidArgument("table '%s': requests count from 1", plan_.name);
  return absl::OkStatus();
}

absl::Status RowKey::CheckRequest(const FrameHeader& header, uint32_t last) const {
  if (header.request - last > kMaxRequestsAhead) {
    return InvalidArgument("request %d is too far ahead of %d", header.request, last);
  }
  if (!state_.round.is_open()) return absl::OkStatus();
  return InvalidArgument("table '%s': a push of step %d is under way; set rows between steps",
                         plan_.name, state_.round.roster().step());
}

absl::Status RowKey::TakeRecords(const Frame& frame, size_t table) {
  const FrameHeader& header = frame.header;
  const auto found = state_.last_records.find(header.sender);
  const uint32_t last = found == state_.last_records.end() ? 0 : found->second;
  if (header.request <= last) return absl::OkStatus();  // As of TakeInit.
  BDN_RETURN_IF_ERROR(CheckRequest(header, last));
  RowTable& rows = state_.tables[table];
  const size_t record_bytes = rows.record_bytes();
  const std::string name = "table '" + link_.tables[table].name + "'";
  const absl::StatusOr<Records> records =
      DecodeRecords(frame.payload.span(), LimitsOf(table, record_bytes, /*most_wanted=*/0));
  if (!records.ok()) return Annotate(records.status(), name);
  const RecordsHead& head = records->head;
  if (head.next != 0 || head.complete_since != 0) {
    return InvalidArgument("%s: an init has no next cursor, and is not complete", name);
  }
  const RowBlock& block = records->block;
  const size_t listed_bytes = ListedBytes(head.list, record_bytes);
  for (size_t i = 0; i < block.ids.size(); ++i) {
    const ByteSpan record = block.rows.subspan(i * listed_bytes, listed_bytes);
    BDN_RETURN_IF_ERROR(
        Annotate(rows.CheckRecord(head.list, record, head.updates),
                 absl::StrFormat("%s: the record of row %d has", name, block.ids[i])));
  }
  const bool is_of_rows = head.list == RowList::kRows;
  const size_t fresh = head.replaces || !is_of_rows ? block.ids.size() : rows.CountNew(block.ids);
  const size_t more = is_of_rows ? rows.BytesOfNew(fresh, 0) : rows.BytesOfNew(0, fresh);
  const size_t less = head.replaces ? rows.bytes() : 0;
  BDN_RETURN_IF_ERROR(
      CheckMemory(more > less ? more - less : 0, header.step, "the records that are set"));
  const uint64_t before = state_.rows();
  if (head.replaces) rows.Clear(head.updates);
  for (size_t i = 0; i < block.ids.size(); ++i) {
    rows.SetRecord(head.list, block.ids[i], block.rows.subspan(i * listed_bytes, listed_bytes));
  }
  rows.set_updates(head.updates);
  shard_.stats.rows += state_.rows() - before;
  state_.last_records[header.sender] = header.request;
  return absl::OkStatus();
}

absl::StatusOr<Buffer> RowKey::EncodeRecords(const Frame& frame, size_t table) const {
  const RowTable& rows = state_.tables[table];
  BDN_ASSIGN_OR_RETURN(const RecordsAsk ask, DecodeRecordsAsk(frame.payload.span()));
  const uint64_t places = rows.places(ask.list);
  if (ask.cursor != 0 && ask.cursor >= places) {
    return InvalidArgument("table '%s': a fetch of records goes on at %d of %d places",
                           link_.tables[table].name, ask.cursor, places);
  }
  // Of an id and the count of its block.
  constexpr size_t kMostOfAnId = 9;
  const size_t record_bytes = ListedBytes(ask.list, rows.record_bytes());
  const size_t room = (kMaxRowsPayload / 2) / (record_bytes + kMostOfAnId);
  const RowTable::Scanned scanned =
      rows.Scan(ask.list, ask.cursor, ask.since, std::min<size_t>({ask.most, room, kMostRows}));
  std::vector<uint64_t> ids(scanned.records.size());
  std::ranges::transform(scanned.records, ids.begin(), [](const auto& of) { return of.first; });
  MutableByteSpan out;
  Buffer payload =
      MakeRecords({.next = scanned.next,
                   .updates = rows.updates(),
                   .list = ask.list,
                   .complete_since = ask.list == RowList::kRemoved ? rows.complete_since() : 0},
                  ids, record_bytes, &out);
  for (size_t i = 0; i < ids.size(); ++i) {
    std::memcpy(out.data() + i * record_bytes, scanned.records[i].second, record_bytes);
  }
  return payload;
}

Sends RowKey::OnFetch(NodeId from, const Frame& frame) {
  const FrameHeader& header = frame.header;
  const absl::StatusOr<Place> place = PlaceOf(from, header.epoch);
  if (!place.ok()) return shard_.Refuse(from, header, place.status());
  FrameHeader value = shard_.AnswerHeader(header, FrameType::kValue);
  value.base_step = state_.last_step;
  const bool asks_position = header.part == StatePart::kPosition && header.request != 0 &&
                             header.element_offset == 0 && CheckElements(header).ok();
  if (asks_position) {
    return {{from, MakeFrame(value, EncodePosition({state_.last_step, false}))}};
  }
  size_t table = 0;
  absl::Status status = CheckRowsHeader(header, "a fetch", &table);
  if (status.ok() && frame.payload.size() > kMaxRowsPayload) {
    status = InvalidArgument("a fetch of table '%s' has at most %d bytes, not %d", plan_.name,
                             kMaxRowsPayload, frame.payload.size());
  }
  Frame fetch = frame;
  Own(&fetch);
  if (status.ok()) status = CheckPayload(fetch);
  if (status.ok() && header.part == StatePart::kRecords) {
    absl::StatusOr<Buffer> records = EncodeRecords(fetch, table);
    if (!records.ok()) return shard_.Refuse(from, header, records.status());
    return {{from, MakeFrame(value, *std::move(records), shard_.options.needs_checksums())}};
  }
  WantedRows wanted(link_.tables.size());
  size_t count = 0;
  const size_t most = kMaxRowsPayload / link_.pull_row_bytes;
  if (status.ok()) {
    status = ReadBlocks(fetch.payload.span(), /*row_bytes=*/0, most,
                        [&](size_t i, RowBlock* block) -> absl::Status {
                          if (!block->ids.empty()) return InvalidArgument("a fetch with rows");
                          count += block->wanted.size();
                          if (count > most) return InvalidArgument("%d rows are wanted", count);
                          wanted[i].ids = std::move(block->wanted);
                          return absl::OkStatus();
                        });
  }
  if (!status.ok()) return shard_.Refuse(from, header, status);
  absl::StatusOr<Buffer> payload = EncodeRows(wanted);
  if (!payload.ok()) return shard_.Refuse(from, header, payload.status());
  shard_.stats.rows_fetched += count;
  return {{from, MakeFrame(value, *std::move(payload), shard_.options.needs_checksums())}};
}

}  // namespace bdn
