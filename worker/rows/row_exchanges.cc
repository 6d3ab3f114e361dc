#include "worker/rows/row_exchanges.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/status.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "common/wire/row_block.h"

namespace bdn {
namespace {

// An answer of up to so many bytes is decoded on the thread that brings it, as of a short key.
constexpr size_t kShortAnswer = 16 << 10;
// An init has about so many bytes at most.
constexpr size_t kInitBytes = size_t{4} << 20;
// A push is sent so many times for the reply of it that a network has damaged.
constexpr int kMostDamaged = 8;

absl::Status NotATable(uint32_t id) {
  return NotFound("no table of id %d was declared, or it was retired since", id);
}

}  // namespace

RowExchanges::RowExchanges(const RowDraws& draws, TensorTable* tensors, RequestRunner* requests,
                           Executor* executor, TicketTable* tickets,
                           std::function<void(Step step)> over)
    : draws_(draws),
      tensors_(tensors),
      requests_(requests),
      executor_(executor),
      tickets_(tickets),
      over_(std::move(over)) {}

// ---- From arrays to requests

absl::StatusOr<std::shared_ptr<const RowLink>> RowExchanges::LinkOf(const KeyExchange& key) {
  KeyQueue& queue = keys_[key.id()];
  if (queue.link != nullptr) return queue.link;
  std::vector<const TensorDeclaration*> tables;
  for (const KeySegment& segment : key.key().entry.segments) {
    tables.push_back(&tensors_->at(segment.tensor).declaration);
  }
  BDN_ASSIGN_OR_RETURN(RowLink link, MakeRowLink(key.key().entry, tables));
  queue.link = std::make_shared<const RowLink>(std::move(link));
  return queue.link;
}

absl::Status RowExchanges::FindGroups(std::span<const TableRows> tables, Call* call) {
  BDN_RETURN_IF_ERROR(tensors_->participation().CheckIsIn());
  for (const TableRows& rows : tables) {
    const Tensor* const table = tensors_->Find(rows.table);
    const bool is_table = table != nullptr && !table->retired && table->is_declared &&
                          table->declaration.kind == KeyKind::kRows;
    if (!is_table) return NotATable(rows.table);
    const KeyExchange& first = *table->parts.at(0).exchange;
    const size_t segment = table->parts[0].segment;
    auto group = std::ranges::find_if(
        call->groups, [&](const Group& one) { return one.buckets[0]->id() == first.id(); });
    if (group == call->groups.end()) {
      Group fresh;
      BDN_ASSIGN_OR_RETURN(fresh.link, LinkOf(first));
      for (const TensorPart& part : table->parts) fresh.buckets.push_back(part.exchange);
      for (const KeySegment& each : first.key().entry.segments) {
        fresh.tables.push_back(each.tensor);
      }
      fresh.in_call.resize(fresh.tables.size());
      call->groups.push_back(std::move(fresh));
      group = call->groups.end() - 1;
    }
    if (group->in_call[segment] != nullptr) {
      return InvalidArgument("table '%s' is there twice in one call", table->declaration.name);
    }
    group->in_call[segment] = std::make_unique<TableInCall>();
    group->in_call[segment]->rows = rows;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<RowExchanges::Call>> RowExchanges::Begin(
    std::span<const TableRows> tables, bool is_cut) {
  if (tables.empty()) return InvalidArgument("a call about rows names no table");
  auto call = std::make_shared<Call>();
  {
    MutexLock lock(tensors_->mutex());
    BDN_RETURN_IF_ERROR(FindGroups(tables, call.get()));
  }
  for (Group& group : call->groups) {
    for (size_t i = 0; i < group.in_call.size(); ++i) {
      if (group.in_call[i] == nullptr) continue;
      const TableRows rows = group.in_call[i]->rows;
      BDN_RETURN_IF_ERROR(CheckTableRows(rows, group.link->tables[i], group.link->width));
      group.in_call[i] = SplitTable(rows, group.link->buckets);
    }
    if (!is_cut) BDN_RETURN_IF_ERROR(CheckRowFrames(*group.link, group.in_call));
  }
  return call;
}

RowExchanges::Pending RowExchanges::MakePending(const std::shared_ptr<Call>& call, size_t group,
                                                uint32_t bucket) {
  Pending pending;
  pending.call = call;
  pending.group = group;
  pending.bucket = bucket;
  return pending;
}

absl::StatusOr<TicketId> RowExchanges::Push(const RowsPush& push) {
  MutexLock one_at_a_time(&calls_);
  const float scale = push.weight / push.loss_scale;
  if (!std::isfinite(push.weight) || push.weight < 0 || !std::isfinite(scale) ||
      !std::isfinite(push.learning_rate) || push.learning_rate < 0) {
    return InvalidArgument("rows are pushed with weight %g, loss scale %g and learning rate %g",
                           push.weight, push.loss_scale, push.learning_rate);
  }
  BDN_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call, Begin(push.tables, /*is_cut=*/false));
  // The draws depend on the step, so it is known before the frames are made; it is taken, in Start,
  // only when nothing can fail any more. Calls go one at a time, so it stays what it is.
  {
    MutexLock lock(tensors_->mutex());
    for (Group& group : call->groups) {
      const Tensor* const table = tensors_->Find(group.tables[0]);
      if (table == nullptr) return NotATable(group.tables[0]);
      group.step = table->pushed + 1;
    }
  }
  std::vector<Pending> requests;
  const bool with_checksum = requests_->needs_checksums();
  for (size_t g = 0; g < call->groups.size(); ++g) {
    Group& group = call->groups[g];
    const RowLink& link = *group.link;
    if (link.rule.is_mean()) group.means.resize(link.buckets);
    const size_t first = requests.size();
    bool is_finite = true;
    for (uint32_t bucket = 0; bucket < link.buckets; ++bucket) {
      Pending& pending = requests.emplace_back(MakePending(call, g, bucket));
      FrameHeader header =
          PushHeader(group.buckets[bucket]->id(), group.step, link.width * link.tables.size());
      header.codec = static_cast<uint8_t>(link.push->id());
      header.weight = push.weight;
      header.learning_rate = push.learning_rate;
      header.program_steps = push.program_steps;
      header.priority = push.priority;
      std::optional<Buffer> payload;
      if (is_finite) {
        payload = EncodeRowPush(link, bucket, group.in_call, scale, group.step, draws_);
        is_finite = payload.has_value();
      }
      if (payload.has_value() && payload->empty()) {
        header.codec = 0;
        header.flags = kFlagAbsent;
      }
      pending.request.frame =
          MakeFrame(header, payload.has_value() ? *std::move(payload) : Buffer(), with_checksum);
    }
    // One gradient that is not finite leaves the step of the whole group out, in all buckets alike.
    for (size_t i = first; !is_finite && i < requests.size(); ++i) {
      FrameHeader header = requests[i].request.frame.header;
      header.codec = 0;
      header.flags = kFlagNonFinite;
      requests[i].request.frame = MakeFrame(header, Buffer());
    }
  }
  BDN_RETURN_IF_ERROR(Start(call, std::move(requests), push.tables[0].table, call->groups[0].step));
  return call->ticket;
}

absl::StatusOr<TicketId> RowExchanges::Fetch(std::span<const TableRows> tables) {
  MutexLock one_at_a_time(&calls_);
  for (const TableRows& rows : tables) {
    if (!rows.ids.empty()) return InvalidArgument("a fetch has wanted ids, and no rows");
  }
  BDN_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call, Begin(tables, /*is_cut=*/false));
  std::vector<Pending> requests;
  for (size_t g = 0; g < call->groups.size(); ++g) {
    const Group& group = call->groups[g];
    for (uint32_t bucket = 0; bucket < group.link->buckets; ++bucket) {
      Buffer payload = EncodeRowFetch(bucket, group.in_call);
      if (payload.empty()) continue;
      const FrameHeader header =
          StateHeader(FrameType::kFetch,
                      {.part = StatePart::kRows,
                       .key = group.buckets[bucket]->id(),
                       .num_elements = group.link->width * group.link->tables.size()},
                      /*step=*/0, /*request=*/0);
      requests.push_back(MakePending(call, g, bucket));
      requests.back().request.frame = MakeFrame(header, std::move(payload));
    }
  }
  BDN_RETURN_IF_ERROR(Start(call, std::move(requests), tables[0].table, 0));
  return call->ticket;
}

absl::StatusOr<TicketId> RowExchanges::Set(const TableRows& rows) {
  MutexLock one_at_a_time(&calls_);
  size_t segment = 0;
  BDN_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call, BeginOne(rows, &segment));
  const Group& group = call->groups[0];
  const RowLink& link = *group.link;
  const TableInCall& table = *group.in_call[segment];
  BDN_RETURN_IF_ERROR(CheckEachOnce(link, segment, table.ids));
  if (link.tables[segment].spec.IsLimited()) {
    return InvalidArgument(
        "table '%s': its rows are admitted, bounded or removed, so that they begin with the values "
        "of its init, and none are set",
        link.tables[segment].name);
  }
  for (size_t i = 0; i < rows.ids.size() * link.width; ++i) {
    if (std::isfinite(rows.gradients[i])) continue;
    return InvalidArgument("table '%s': row %d, at position %d, has an element that is not finite",
                           link.tables[segment].name, rows.ids[i / link.width], i / link.width);
  }
  std::vector<Pending> requests;
  const size_t most = std::max<size_t>(1, kInitBytes / (link.width * sizeof(float)));
  for (uint32_t bucket = 0; bucket < link.buckets; ++bucket) {
    const size_t count = table.ids.ids(bucket).size();
    for (size_t first = 0; first < count; first += most) {
      const FrameHeader header = StateHeader(FrameType::kInit,
                                             {.part = StatePart::kRows,
                                              .key = group.buckets[bucket]->id(),
                                              .num_elements = link.width * link.tables.size()},
                                             /*step=*/0, /*request=*/0);
      requests.push_back(MakePending(call, 0, bucket));
      requests.back().request.frame = MakeFrame(
          header,
          EncodeRowInit(link, bucket, segment, table, first, std::min(most, count - first)));
    }
  }
  BDN_RETURN_IF_ERROR(Start(call, std::move(requests), rows.table, 0));
  return call->ticket;
}

absl::StatusOr<std::shared_ptr<RowExchanges::Call>> RowExchanges::BeginOne(const TableRows& rows,
                                                                           size_t* segment) {
  BDN_ASSIGN_OR_RETURN(std::shared_ptr<Call> call, Begin({&rows, 1}, /*is_cut=*/true));
  const TablesInCall& tables = call->groups[0].in_call;
  *segment = 0;
  while (tables[*segment] == nullptr) ++*segment;
  return call;
}

absl::Status RowExchanges::CheckEachOnce(const RowLink& link, size_t segment, const RowSet& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids.positions(i).size() == 1) continue;
    return InvalidArgument("table '%s': the row at position %d is set again at position %d",
                           link.tables[segment].name, ids.positions(i)[0], ids.positions(i)[1]);
  }
  return absl::OkStatus();
}

FrameHeader RowExchanges::RecordsHeader(FrameType type, const Group& group, uint32_t bucket,
                                        size_t segment) {
  const size_t width = group.link->width;
  return StateHeader(type,
                     {.part = StatePart::kRecords,
                      .key = group.buckets[bucket]->id(),
                      .num_elements = width * group.link->tables.size(),
                      .element_offset = width * segment},
                     /*step=*/0, /*request=*/0);
}

absl::StatusOr<SummedRows> RowExchanges::Summed(uint32_t table) {
  std::vector<const SummedRows*> parts;
  std::shared_ptr<Call> call;
  size_t width = 0;
  {
    MutexLock lock(tensors_->mutex());
    const Tensor* const found = tensors_->Find(table);
    if (found == nullptr || found->parts.empty() || found->declaration.kind != KeyKind::kRows) {
      return NotATable(table);
    }
    const Key first = found->parts[0].exchange->id();
    const size_t segment = found->parts[0].segment;
    const auto last = summed_.find(first);
    if (last == summed_.end()) {
      return NotFound("table '%s' has no means: no step of it has ended, or its rule is not mean",
                      found->declaration.name);
    }
    call = last->second;
    if (call->num_open != 0) {
      return FailedPrecondition("table '%s': its step is still on its way; wait for its ticket",
                                found->declaration.name);
    }
    width = found->declaration.elements;
    for (const Group& group : call->groups) {
      if (group.buckets[0]->id() != first) continue;
      for (const auto& bucket : group.means) {
        if (bucket.size() > segment && bucket[segment].has_value()) {
          parts.push_back(&*bucket[segment]);
        }
      }
    }
    if (parts.empty()) {
      return NotFound("table '%s': no worker has pushed anything of it in this step",
                      found->declaration.name);
    }
  }
  // All requests have ended, so that nothing changes the parts any more.
  struct Row {
    uint64_t id;
    const float* values;
  };
  std::vector<Row> rows;
  for (const SummedRows* const part : parts) {
    for (size_t i = 0; i < part->ids.size(); ++i) {
      rows.push_back({part->ids[i], part->rows.data() + i * width});
    }
  }
  std::ranges::sort(rows, {}, &Row::id);
  SummedRows all;
  all.ids.reserve(rows.size());
  all.rows.reserve(rows.size() * width);
  for (const Row& row : rows) {
    all.ids.push_back(row.id);
    all.rows.insert(all.rows.end(), row.values, row.values + width);
  }
  return all;
}

absl::StatusOr<TableLayout> RowExchanges::LayoutOf(uint32_t table) {
  MutexLock one_at_a_time(&calls_);
  size_t segment = 0;
  BDN_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call, BeginOne({.table = table}, &segment));
  const RowLink& link = *call->groups[0].link;
  return TableLayout{.width = static_cast<uint32_t>(link.width),
                     .moment_floats = static_cast<uint32_t>(link.rule.MomentFloats(link.width)),
                     .buckets = link.buckets,
                     .is_limited = link.tables[segment].spec.IsLimited()};
}

absl::StatusOr<TicketId> RowExchanges::Scan(const RecordsScan& scan) {
  MutexLock one_at_a_time(&calls_);
  size_t segment = 0;
  BDN_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call, BeginOne({.table = scan.table}, &segment));
  const Group& group = call->groups[0];
  const RowLink& link = *group.link;
  if (scan.bucket >= link.buckets || scan.room == 0) {
    return InvalidArgument("table '%s': a scan of bucket %d of %d, with room for %d records",
                           link.tables[segment].name, scan.bucket, link.buckets, scan.room);
  }
  call->scan = scan;
  const RecordsAsk ask{.cursor = scan.cursor,
                       .since = scan.since,
                       .most = static_cast<uint32_t>(std::min<size_t>(scan.room, kMostRows)),
                       .list = scan.list};
  std::vector<Pending> requests;
  requests.push_back(MakePending(call, 0, scan.bucket));
  requests.back().request.frame = MakeFrame(
      RecordsHeader(FrameType::kFetch, group, scan.bucket, segment), EncodeRecordsAsk(ask));
  BDN_RETURN_IF_ERROR(Start(call, std::move(requests), scan.table, 0));
  return call->ticket;
}

absl::StatusOr<TicketId> RowExchanges::SetRecords(const RecordsSet& set) {
  MutexLock one_at_a_time(&calls_);
  size_t segment = 0;
  BDN_ASSIGN_OR_RETURN(const std::shared_ptr<Call> call,
                       BeginOne({.table = set.table,
                                 .ids = set.ids,
                                 .gradients = reinterpret_cast<const float*>(set.records)},
                                &segment));
  const Group& group = call->groups[0];
  const RowLink& link = *group.link;
  const TableInCall& table = *group.in_call[segment];
  BDN_RETURN_IF_ERROR(CheckEachOnce(link, segment, table.ids));
  const size_t record_bytes = ListedBytes(set.list, RecordBytesOf(link));
  const size_t most = std::max<size_t>(1, kInitBytes / record_bytes);
  std::vector<Pending> requests;
  for (uint32_t bucket = 0; bucket < link.buckets; ++bucket) {
    const size_t count = table.ids.ids(bucket).size();
    // A bucket without records is told of the table's updates, too.
    size_t first = 0;
    do {
      const size_t part = std::min(most, count - first);
      const RecordsHead head{.next = 0,
                             .updates = set.updates,
                             .replaces = set.replaces && first == 0,
                             .list = set.list};
      requests.push_back(MakePending(call, 0, bucket));
      requests.back().request.frame =
          MakeFrame(RecordsHeader(FrameType::kInit, group, bucket, segment),
                    EncodeRecordsInit(bucket, table, set.records, record_bytes, head, first, part));
      first += part;
    } while (first < count);
  }
  BDN_RETURN_IF_ERROR(Start(call, std::move(requests), set.table, 0));
  return call->ticket;
}

// ---- From requests to the end of a ticket

RequestTable::Request RowExchanges::RequestFor(const KeyExchange& key, Frame frame) const {
  return {.frame = std::move(frame),
          .server = key.key().server,
          .catalogue_version = key.key().catalogue_version,
          .tensor = key.first_tensor()};
}

absl::Status RowExchanges::Start(std::shared_ptr<Call> call, std::vector<Pending> requests,
                                 uint32_t table, Step step) {
  std::vector<Key> ready;
  Ended ended;
  {
    MutexLock lock(tensors_->mutex());
    BDN_RETURN_IF_ERROR(tensors_->participation().CheckIsIn());
    for (const Pending& pending : requests) {
      const KeyExchange* const key = tensors_->FindKey(pending.request.frame.header.key);
      if (key == nullptr || key->is_retired()) return NotATable(table);
    }
    // From here on nothing fails, so steps and numbers are taken.
    for (const Group& group : call->groups) {
      for (const uint32_t id : group.tables) {
        if (group.step != 0) tensors_->at(id).pushed = group.step;
      }
      if (!group.means.empty()) summed_[group.buckets[0]->id()] = call;
    }
    call->num_open = requests.size();
    call->ticket = tickets_->Open({.tensor = table,
                                   .step = step,
                                   .parts = std::max<size_t>(1, requests.size()),
                                   .done = nullptr});
    for (Pending& pending : requests) {
      const Key id = pending.request.frame.header.key;
      KeyExchange* const key = tensors_->FindKey(id);
      if (pending.request.frame.header.part != StatePart::kNone) {
        pending.request.frame.header.request = key->NextRequestNumber();
        pending.request.frame.header.step = tensors_->at(table).pushed;
      }
      pending.request = RequestFor(*key, std::move(pending.request.frame));
      key->set_has_server_request(true);
      KeyQueue& queue = keys_[id];
      if (queue.pending.empty()) ready.push_back(id);
      queue.pending.push_back(std::move(pending));
    }
    if (requests.empty()) tickets_->EndPart(call->ticket, {}, &ended);
  }
  tickets_->Deliver(ended);
  for (const Key key : ready) Submit(key);
  return absl::OkStatus();
}

// Sends the first request of a key's queue.
void RowExchanges::Submit(Key key) {
  RequestTable::Request request;
  {
    MutexLock lock(tensors_->mutex());
    request = keys_.at(key).pending.front().request;
  }
  const absl::Status sent = requests_->Submit(
      std::move(request), {.sent = nullptr, .answered = [this, key](auto outcome) {
                             OnAnswer(key, std::move(outcome));
                           }});
  if (!sent.ok()) OnAnswer(key, {.frame = sent});
}

void RowExchanges::OnAnswer(Key key, RequestTable::Outcome outcome) {
  Pending pending;
  {
    MutexLock lock(tensors_->mutex());
    // It stays the first of the queue until Finish, so that nothing else of the key is sent.
    pending = keys_.at(key).pending.front();
  }
  if (!outcome.frame.ok() || outcome.frame->payload.size() <= kShortAnswer) {
    return Finish(key, std::move(pending), std::move(outcome));
  }
  executor_->Post(
      [this, key, pending = std::move(pending), outcome = std::move(outcome)]() mutable {
        Finish(key, std::move(pending), std::move(outcome));
      });
}

absl::Status RowExchanges::Decode(const Pending& pending, const Frame& answer) const {
  // An init has nothing to be read.
  if (pending.request.frame.header.type == FrameType::kInit) return absl::OkStatus();
  const FrameHeader& asked = pending.request.frame.header;
  const Group& group = pending.call->groups[pending.group];
  const bool is_of_means = asked.type == FrameType::kPush && group.link->rule.is_mean();
  if (answer.header.flags != 0 && asked.part != StatePart::kRecords) {
    // What was wanted of means that there are not.
    const bool is_nonfinite = (answer.header.flags & kFlagNonFinite) != 0;
    if (is_of_means) {
      FillWanted(*group.link, pending.bucket, group.in_call,
                 is_nonfinite ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
    }
    return absl::OkStatus();
  }
  Frame own = answer;
  Own(&own);
  BDN_RETURN_IF_ERROR(CheckPayload(own));
  if (asked.part == StatePart::kRecords) {
    return DecodeRecordsValue(*group.link, asked.element_offset / group.link->width,
                              pending.call->scan, own.payload.span());
  }
  if (is_of_means) {
    BDN_ASSIGN_OR_RETURN(
        pending.call->groups[pending.group].means[pending.bucket],
        DecodeMeans(*group.link, pending.bucket, group.in_call, own.payload.span()));
    return absl::OkStatus();
  }
  return DecodeRowAnswer(*group.link, pending.bucket, group.in_call, own.payload.span());
}

void RowExchanges::Finish(Key key, Pending pending, RequestTable::Outcome outcome) {
  const Group& group = pending.call->groups[pending.group];
  absl::Status status = outcome.frame.status();
  if (status.ok()) status = Decode(pending, *outcome.frame);
  const bool is_push = pending.request.frame.header.type == FrameType::kPush;
  const bool is_nonfinite =
      status.ok() && is_push && (outcome.frame->header.flags & kFlagNonFinite) != 0;
  // The reply of a step that was left out has no rows, so they are fetched: as they were before it.
  Buffer fetch;
  if (is_nonfinite && !group.link->rule.is_mean()) {
    fetch = EncodeRowFetch(pending.bucket, group.in_call);
  }
  // The server sends a damaged reply again when it gets the same push again.
  const bool is_damaged =
      absl::IsDataLoss(status) && outcome.frame.ok() && pending.num_damaged < kMostDamaged;
  const Step step = pending.request.frame.header.step;
  bool goes_on = false;
  Ended ended;
  std::unique_ptr<KeyExchange> gone;
  {
    MutexLock lock(tensors_->mutex());
    KeyExchange* const exchange = tensors_->FindKey(key);
    KeyQueue& queue = keys_.at(key);
    if (is_damaged) {
      ++queue.pending.front().num_damaged;
      goes_on = true;
    } else if (!fetch.empty()) {
      const FrameHeader header =
          StateHeader(FrameType::kFetch,
                      {.part = StatePart::kRows,
                       .key = key,
                       .num_elements = group.link->width * group.link->tables.size()},
                      step, exchange->NextRequestNumber());
      queue.pending.front().request = RequestFor(*exchange, MakeFrame(header, std::move(fetch)));
      queue.pending.front().is_after_nonfinite = true;
      goes_on = true;
    } else {
      const bool was_absent =
          status.ok() && is_push && (outcome.frame->header.flags & kFlagAbsent) != 0;
      --pending.call->num_open;
      tickets_->EndPart(pending.call->ticket,
                        {.status = status,
                         .absent = was_absent,
                         .nonfinite = is_nonfinite || pending.is_after_nonfinite},
                        &ended);
      queue.pending.pop_front();
      goes_on = !queue.pending.empty();
      if (!goes_on) {
        exchange->set_has_server_request(false);
        gone = tensors_->RemoveIfUnused(exchange);
      }
    }
  }
  if (goes_on) Submit(key);
  if (is_push && !is_damaged) over_(step);
  tickets_->Deliver(ended);
}

}  // namespace bdn
