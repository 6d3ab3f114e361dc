#include "worker/pipeline/recovery_table.h"

#include <algorithm>
#include <utility>

#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/wire/headers.h"

namespace bdn {
namespace {

// A reply that is to be given is decoded by then, unless its caller has met with an error.
constexpr absl::Duration kLongestDecode = absl::Seconds(2);
constexpr absl::Duration kGivePause = absl::Milliseconds(5);

void Append(RequestTable::Actions more, RequestTable::Actions* out) {
  for (const NodeId server : more.reconnects) out->reconnects.push_back(server);
  for (RequestTable::Outgoing& send : more.sends) out->sends.push_back(std::move(send));
  for (RequestTable::Answer& answer : more.answers) out->answers.push_back(std::move(answer));
}

}  // namespace

// ---- keys

void RecoveryTable::AddKey(KeyFacts facts) {
  const Key key = facts.key;
  auto log = std::make_unique<Log>();
  const SlotOwner owner = membership_->OwnerOf(key, facts.home);
  // A key that was placed on a lost server goes to the new one from its first step on. One that was
  // declared before its server was lost may be known there.
  const bool is_new_there = owner.since <= facts.declared_in;
  log->whole_since = is_new_there ? owner.since : 0;
  log->facts = std::move(facts);
  if (!is_new_there) {
    log->stage = Stage::kReport;
    due_.push_back(key);
  }
  logs_[key] = std::move(log);
}

void RecoveryTable::Retire(Key key) {
  Log* const log = Find(key);
  if (log == nullptr) return;
  log->is_retired = true;
  if (log->stage == Stage::kIdle) Forget(log);
}

void RecoveryTable::BeginAt(Key key, const KeyPosition& position) {
  Log* const log = Find(key);
  if (log == nullptr) return;
  log->done = std::max(log->done, position.step);
  if (log->facts.is_dense) log->complete_from = std::max(log->complete_from, position.step);
  if (position.is_uncompressed) log->uncompressed_from = position.step + 1;
}

void RecoveryTable::Forget(Log* log) {
  const Key key = log->facts.key;
  log->facts.tensor.clear();
  log->facts.tensor.shrink_to_fit();
  retired_[key] = {std::move(log->facts), log->whole_since};
  logs_.erase(key);
}

RecoveryTable::Log* RecoveryTable::Find(Key key) const {
  const auto found = logs_.find(key);
  return found == logs_.end() ? nullptr : found->second.get();
}

bool RecoveryTable::IsOwn(const Log& log) {
  return log.stage != Stage::kIdle && log.stage != Stage::kOpen && log.stage != Stage::kAwait;
}

bool RecoveryTable::IsOwn(Key key) const {
  const Log* const log = Find(key);
  return log != nullptr && IsOwn(*log);
}

bool RecoveryTable::IsOpen(Key key) const {
  const Log* const log = Find(key);
  return log == nullptr ? table_.IsOpen(key) : log->current.has_value();
}

std::string RecoveryTable::WaitingFor(Key key) const { return table_.WaitingFor(key); }

RecoveryStats RecoveryTable::recovery_stats() const {
  RecoveryStats stats = stats_;
  for (const auto& [key, log] : logs_) {
    for (const Done& done : log->pushes) stats.log_bytes += done.push.payload.size();
    for (const Init& init : log->inits) stats.log_bytes += init.frame.payload.size();
    if (log->value.has_value()) stats.log_bytes += log->value->payload.size();
    if (log->reply.has_value()) stats.log_bytes += log->reply->payload.size();
    for (const Snapshot& saved : log->saved) stats.snapshot_bytes += saved.bytes.size();
  }
  return stats;
}

absl::Time RecoveryTable::NextTick() const {
  return due_.empty() ? std::min(next_give_, table_.NextTick()) : absl::InfinitePast();
}

// ---- the caller's requests

absl::StatusOr<RecoveryTable::Actions> RecoveryTable::Submit(Request request, absl::Time now) {
  const Key key = request.frame.header.key;
  Log* const log = Find(key);
  if (log == nullptr) {
    BDN_ASSIGN_OR_RETURN(Actions actions, table_.Submit(std::move(request), now));
    return Handle(std::move(actions), now);
  }
  if (log->current.has_value()) {
    return AlreadyExists("key %s has an open request", key.ToString());
  }
  Actions actions;
  if (!table_.failed().ok()) {
    actions.answers.push_back({key, request.frame.header.step, {table_.failed()}});
    return actions;
  }
  const bool is_push = request.frame.header.type == FrameType::kPush;
  const Step step = request.frame.header.step;
  if (is_push) log->open_push = step;
  log->current = std::move(request);
  const bool is_of_redo = log->stage == Stage::kOpen && is_push && step <= log->target;
  if (log->stage == Stage::kIdle || is_of_redo) {
    SendCurrent(log, now, &actions);
  } else {
    log->is_parked = true;
  }
  return actions;
}

bool RecoveryTable::Withdraw(Key key, Step step) {
  Log* const log = Find(key);
  if (log == nullptr) return table_.Withdraw(key, step);
  if (!log->current.has_value() || log->current->frame.header.step != step) return false;
  if (!log->is_parked && !table_.Withdraw(key, step)) return false;
  log->current.reset();
  log->is_parked = false;
  return true;
}

void RecoveryTable::SendCurrent(Log* log, absl::Time now, Actions* out) {
  log->is_parked = false;
  Request request = *log->current;
  if (request.frame.header.type == FrameType::kPush) StampSaved(*log, &request.frame.header);
  absl::StatusOr<Actions> actions = table_.Submit(std::move(request), now);
  // The key has no open request in the table, or this would not be called.
  if (!actions.ok()) return LogError("%s", actions.status().message());
  Append(Handle(*std::move(actions), now), out);
}

void RecoveryTable::StampSaved(const Log& log, FrameHeader* push) const {
  push->saved_step = 0;
  for (const Snapshot& saved : log.saved) {
    if (saved.step < push->step) push->saved_step = saved.step;
  }
}

bool RecoveryTable::OnSent(Key key, uint64_t request, absl::Time now) {
  return table_.OnSent(key, request, now) && !IsOwn(key);
}

RecoveryTable::Actions RecoveryTable::OnFrame(NodeId server, const Frame& frame, absl::Time now) {
  const FrameHeader& header = frame.header;
  Log* const log = Find(header.key);
  // The server says by itself that nobody needs a broadcast's value any more.
  const bool is_told = header.type == FrameType::kReply && header.flags == kFlagUnwanted &&
                       log != nullptr && !log->facts.is_dense && log->value.has_value() &&
                       log->value->header.step == header.step;
  if (is_told && !log->current.has_value() && header.sender == server) {
    log->value.reset();
    return {};
  }
  return Handle(table_.OnFrame(server, frame, now), now);
}

RecoveryTable::Actions RecoveryTable::OnTick(absl::Time now) {
  Actions out;
  for (const Key key : std::exchange(due_, {})) {
    Log* const log = Find(key);
    if (log != nullptr && log->stage == Stage::kReport && !table_.IsOpen(key)) {
      Report(log, Stage::kReport, now, &out);
    }
  }
  if (now >= next_give_) {
    next_give_ = absl::InfiniteFuture();
    for (const Key key : std::exchange(giving_, {})) {
      Log* const log = Find(key);
      if (log != nullptr && log->stage == Stage::kAwait) Give(log, now, &out);
    }
  }
  Append(Handle(table_.OnTick(now), now), &out);
  return out;
}

RecoveryTable::Actions RecoveryTable::Fail(const absl::Status& status) {
  return Handle(table_.Fail(status), absl::InfinitePast());
}

// ---- answers

RecoveryTable::Actions RecoveryTable::Handle(Actions actions, absl::Time now) {
  Actions out;
  out.reconnects = std::move(actions.reconnects);
  out.sends = std::move(actions.sends);
  for (RequestTable::Answer& answer : actions.answers) {
    Log* const log = Find(answer.key);
    if (log == nullptr) {
      out.answers.push_back(std::move(answer));
    } else if (IsOwn(*log)) {
      OnOwnAnswer(log, answer.outcome, now, &out);
    } else {
      const std::optional<Request> request = std::exchange(log->current, std::nullopt);
      const RequestTable::Outcome outcome = answer.outcome;
      out.answers.push_back(std::move(answer));
      if (request.has_value()) OnCallersAnswer(log, *request, outcome, now, &out);
    }
  }
  // Requests that are held back are in no table, and end with it.
  if (!table_.failed().ok() && !std::exchange(has_flushed_, true)) {
    for (auto& [key, log] : logs_) {
      if (!log->is_parked) continue;
      log->is_parked = false;
      const Request request = *std::exchange(log->current, std::nullopt);
      out.answers.push_back({key, request.frame.header.step, {table_.failed()}});
    }
  }
  return out;
}

void RecoveryTable::OnCallersAnswer(Log* log, const Request& request,
                                    const RequestTable::Outcome& outcome, absl::Time now,
                                    Actions* out) {
  // The caller asks again whether its push was counted.
  if (outcome.is_unknown || !table_.failed().ok()) return;
  const FrameHeader& asked = request.frame.header;
  const bool is_push = asked.type == FrameType::kPush;
  if (is_push) log->open_push = 0;
  if (!outcome.frame.ok()) {
    if (is_push) {
      // Whether the round failed for all is not known here, and it cannot be made again.
      log->is_broken = true;
      log->pushes.clear();
      log->push_bytes = 0;
      log->complete_from = std::max(log->complete_from, asked.step);
    }
  } else if (is_push) {
    KeepReply(log, *outcome.frame);
    OnPushed(log, request.frame, *outcome.frame);
  } else if (!log->facts.is_dense) {
    log->done = std::max(log->done, asked.step);
    const bool is_kept =
        asked.type == FrameType::kInit && (outcome.frame->header.flags & kFlagUnwanted) == 0;
    if (asked.type == FrameType::kInit) log->value.reset();
    if (is_kept) log->value = request.frame;
  } else if (asked.type == FrameType::kInit) {
    log->inits.push_back({request.frame, log->done});
    if (asked.part != StatePart::kRule) log->done = std::max(log->done, asked.step);
  }
  if (log->stage == Stage::kOpen && is_push) {
    Report(log, Stage::kConfirm, now, out);
  } else if (log->stage == Stage::kIdle && is_push && IsSnapshotDue(*log)) {
    Save(log, now, out);
  }
}

void RecoveryTable::OnPushed(Log* log, const Frame& push, const Frame& reply) {
  const Step step = push.header.step;
  log->is_broken = false;
  log->done = std::max(log->done, step);
  const bool is_repeat = !log->pushes.empty() && log->pushes.back().push.header.step >= step;
  if (is_repeat) return;
  log->push_bytes += push.payload.size();
  log->pushes.push_back({push, reply.header.flags, reply.header.payload_crc, reply.header.epoch});
  if ((reply.header.flags & kFlagUncompressed) != 0 && log->uncompressed_from == 0) {
    log->uncompressed_from = step + 1;
  }
  // Without state at the server a step is made of its pushes alone, and only the last can be asked
  // for.
  Trim(log, log->facts.snapshot_every == 0 ? step - 1 : reply.header.saved_step);
}

void RecoveryTable::KeepReply(Log* log, const Frame& reply) {
  if (!log->facts.keeps_reply) return;
  const FrameHeader& header = reply.header;
  log->replied = header.step;
  log->replied_flags = header.flags;
  if (!HasPayload(header.flags)) return;
  log->reply = reply;
  Own(&*log->reply);
}

void RecoveryTable::Trim(Log* log, Step saved) {
  if (saved == 0) return;
  while (!log->pushes.empty() && log->pushes.front().push.header.step <= saved) {
    log->complete_from = std::max(log->complete_from, log->pushes.front().push.header.step);
    log->push_bytes -= log->pushes.front().push.payload.size();
    log->pushes.pop_front();
  }
  // An init at the very step of the snapshot may have come after it.
  std::erase_if(log->inits, [saved](const Init& init) { return init.after < saved; });
  while (!log->saved.empty() && log->saved.front().step < saved) log->saved.pop_front();
}

// ---- snapshots

bool RecoveryTable::IsHolder(const Log& log) const {
  // This worker's place among those of the key that are present, and their number.
  size_t place = 0;
  size_t present = 0;
  if (log.facts.ranks.is_all()) {
    const size_t workers = std::max<size_t>(1, options_.processes.size());
    present = workers - std::min(workers - 1, membership_->vacant.size());
    const auto below = std::ranges::lower_bound(membership_->vacant, options_.rank);
    place = static_cast<size_t>(options_.rank - (below - membership_->vacant.begin()));
  } else {
    for (const Rank rank : log.facts.ranks.ranks()) {
      if (membership_->IsVacant(rank)) continue;
      place += rank < options_.rank ? 1 : 0;
      ++present;
    }
  }
  const Key key = log.facts.key;
  return present > 0 && (uint64_t{key.tensor()} + key.partition()) % present == place;
}

bool RecoveryTable::IsSnapshotDue(const Log& log) const {
  const uint32_t every = log.facts.snapshot_every;
  if (every == 0 || log.is_broken || !IsHolder(log)) return false;
  const Snapshot* const newest = log.saved.empty() ? nullptr : &log.saved.back();
  // Rounds and inits of workers that are lost since cannot be made again, so they must soon be
  // covered.
  const Epoch covered = newest != nullptr ? newest->epoch : log.facts.declared_in;
  if (membership_->unsafe > covered) return true;
  if (log.done == 0 || (newest != nullptr && newest->step >= log.done)) return false;
  // A step that has failed cannot be made again either.
  if (log.complete_from > (newest != nullptr ? newest->step : 0)) return true;
  // While a key goes uncompressed its pushes are longer than those by which `every` was chosen.
  const bool is_full = log.pushes.size() > 1 && log.push_bytes >= 8 * log.facts.elements;
  const Key key = log.facts.key;
  return is_full || (log.done + key.tensor() + key.partition()) % every == 0;
}

void RecoveryTable::Save(Log* log, absl::Time now, Actions* out) {
  log->stage = Stage::kSaving;
  const FrameHeader header = StateHeader(
      FrameType::kFetch,
      {.part = StatePart::kSnapshot, .key = log->facts.key, .num_elements = log->facts.elements},
      log->done, ++last_request_);
  SubmitOwn(log, Frame{header, {}}, now, out);
}

void RecoveryTable::TakeSnapshot(Log* log, const Frame& value) {
  ++stats_.snapshots;
  FaultPoint("snapshot.half");
  Frame own = value;
  Own(&own);
  const Step step = value.header.base_step;
  // The last one is kept until a reply says that all know of this one.
  const bool replaces = !log->saved.empty() && log->saved.back().step >= step;
  if (log->saved.size() == 2 || replaces) log->saved.pop_back();
  log->saved.push_back({step, value.header.epoch, std::move(own.payload)});
}

// ---- recovery

bool RecoveryTable::IsMoved(const KeyFacts& facts, Epoch whole_since) const {
  return membership_->OwnerOf(facts.key, facts.home).since != whole_since;
}

RecoveryTable::Actions RecoveryTable::SetMembership(std::shared_ptr<const Membership> membership,
                                                    absl::Time now) {
  if (membership->epoch <= membership_->epoch) return {};
  membership_ = membership;
  for (auto retired = retired_.begin(); retired != retired_.end();) {
    const auto next = retired++;
    if (!IsMoved(next->second.facts, next->second.whole_since)) continue;
    auto log = std::make_unique<Log>();
    log->facts = std::move(next->second.facts);
    log->whole_since = next->second.whole_since;
    log->is_retired = log->is_forgotten = true;
    logs_[log->facts.key] = std::move(log);
    retired_.erase(next);
  }
  std::vector<Log*> recovering;
  for (auto& [key, log] : logs_) {
    // Also where an earlier recovery has not ended: the server has begun anew.
    if (!IsMoved(log->facts, log->whole_since)) continue;
    HoldBack(log.get());
    recovering.push_back(log.get());
  }
  Actions out = Handle(table_.SetMembership(std::move(membership), now), now);
  if (!table_.failed().ok()) return out;
  for (Log* const log : recovering) Report(log, Stage::kReport, now, &out);
  for (auto& [key, log] : logs_) {
    const bool is_free = log->stage == Stage::kIdle && !log->current.has_value();
    if (is_free && IsSnapshotDue(*log)) Save(log.get(), now, &out);
  }
  return out;
}

void RecoveryTable::HoldBack(Log* log) {
  const Key key = log->facts.key;
  if (IsOwn(*log)) {
    (void)table_.Withdraw(key, log->own_step);
  } else if (log->current.has_value()) {
    (void)table_.Withdraw(key, log->current->frame.header.step);
    log->is_parked = true;
  }
}

bool RecoveryTable::HasOpenInit(const Log& log) {
  return log.current.has_value() && log.current->frame.header.type == FrameType::kInit;
}

void RecoveryTable::Report(Log* log, Stage stage, absl::Time now, Actions* out) {
  log->stage = stage;
  KeyReport report{.done = log->done,
                   .complete_from = log->complete_from,
                   .uncompressed_from = log->uncompressed_from,
                   .is_broken = log->is_broken,
                   .is_retired = log->is_forgotten,
                   .is_redone = stage == Stage::kConfirm};
  if (log->facts.is_dense) {
    report.open = log->open_push;
  } else if (log->current.has_value()) {
    report.open = log->current->frame.header.step;
    report.is_root = log->current->frame.header.type == FrameType::kInit;
  }
  for (const Done& done : log->pushes) {
    if (done.epoch >= membership_->unsafe) continue;
    report.complete_from = std::max(report.complete_from, done.push.header.step);
  }
  const bool has_state = log->facts.snapshot_every > 0;
  report.needs_snapshot = has_state && membership_->unsafe > log->facts.declared_in;
  for (size_t i = 0; i < log->saved.size(); ++i) {
    // A worker that is lost since may have set the state after it.
    if (log->saved[i].epoch >= membership_->unsafe) report.snapshots[i] = log->saved[i].step + 1;
  }
  if (!log->saved.empty()) report.newest_snapshot = log->saved.back().step + 1;
  report.has_reply = log->replied != 0 && (log->replied_flags & kFlagUnwanted) == 0;
  if (log->value.has_value()) report.keeps_value = log->value->header.step;
  // Of inits that follow the same step the last one stands for all.
  if (stage == Stage::kReport) {
    log->reported = log->inits;
    log->reported_open = 0;
    log->reported_value.reset();
    // Of the open one nobody knows whether the lost server had applied it, and others may have seen
    // it.
    if (HasOpenInit(*log)) {
      const Frame& open = log->current->frame;
      if (log->facts.is_dense) {
        log->reported.push_back({open, log->done});
        log->reported_open = open.header.request;
      } else {
        log->reported_value = open;
      }
    }
  }
  for (const Init& init : log->reported) {
    const LoggedInit logged{init.after, init.frame.header.request};
    if (!report.inits.empty() && report.inits.back().after == init.after) {
      report.inits.back() = logged;
    } else {
      report.inits.push_back(logged);
    }
  }
  if (report.inits.size() > kMostLoggedInits) {
    report.inits.clear();
    report.is_broken = true;
  }
  FrameHeader header;
  header.type = FrameType::kReport;
  header.key = log->facts.key;
  header.num_elements = log->facts.elements;
  header.request = ++last_request_;
  FaultPoint("report.some");
  SubmitOwn(log, MakeFrame(header, EncodeReport(report)), now, out);
}

void RecoveryTable::SubmitOwn(Log* log, Frame frame, absl::Time now, Actions* out) {
  log->own_step = frame.header.step;
  log->own_type = frame.header.type;
  log->own_request = frame.header.request;
  absl::StatusOr<Actions> actions =
      table_.Submit({.frame = std::move(frame),
                     .server = log->facts.home,
                     .catalogue_version = log->facts.catalogue_version,
                     .tensor = log->facts.tensor,
                     .is_patient = true},
                    now);
  if (!actions.ok()) return LogError("%s", actions.status().message());
  Append(Handle(*std::move(actions), now), out);
}

void RecoveryTable::OnOwnAnswer(Log* log, const RequestTable::Outcome& outcome, absl::Time now,
                                Actions* out) {
  if (!table_.failed().ok()) return;
  const absl::StatusOr<Frame>& frame = outcome.frame;
  switch (log->stage) {
    case Stage::kSaving:
      if (frame.ok()) {
        TakeSnapshot(log, *frame);
      } else {
        LogWarning("no snapshot of tensor '%s' could be had: %s", log->facts.tensor,
                   frame.status().message());
      }
      log->stage = Stage::kIdle;
      if (log->is_retired) return Forget(log);
      // After an error not at once, but with a later step.
      return frame.ok() ? Release(log, now, out) : SendParked(log, now, out);
    case Stage::kReport:
    case Stage::kConfirm:
      if (frame.ok()) return OnOrder(log, *frame, now, out);
      // All workers are done with it.
      if (absl::IsNotFound(frame.status())) {
        if (log->is_forgotten) return (void)logs_.erase(log->facts.key);
        return OnOrder(log, MakeFrame({}, EncodeOrder({})), now, out);
      }
      return Diverged(log, std::string(frame.status().message()), out);
    case Stage::kSet:
    case Stage::kGive:
      if (!frame.ok()) return Diverged(log, std::string(frame.status().message()), out);
      return Report(log, Stage::kReport, now, out);
    case Stage::kRedo: {
      // The caller's own init that has no answer yet may be wrong, and gets the error itself.
      const bool is_callers = log->own_type == FrameType::kInit && log->own_request != 0 &&
                              log->own_request == log->reported_open;
      if (!frame.ok() && is_callers) return SendNextOfRedo(log, now, out);
      if (!frame.ok()) return Diverged(log, std::string(frame.status().message()), out);
      const Step step = log->own_step;
      const auto done = std::ranges::find_if(
          log->pushes, [step](const Done& one) { return one.push.header.step == step; });
      if (log->own_type == FrameType::kPush && done != log->pushes.end()) {
        const uint32_t crc = frame->header.payload_crc;
        const bool is_same = frame->header.flags == done->reply_flags &&
                             (crc == 0 || done->reply_crc == 0 || crc == done->reply_crc);
        if (!is_same) {
          return Diverged(
              log,
              absl::StrFormat("step %d, made again, has another result than the first "
                              "time (flags 0x%02x and 0x%02x, CRC 0x%08x and 0x%08x)",
                              step, frame->header.flags, done->reply_flags, crc, done->reply_crc),
              out);
        }
      }
      return SendNextOfRedo(log, now, out);
    }
    case Stage::kIdle:
    case Stage::kOpen:
    case Stage::kAwait:
      return;
  }
}

void RecoveryTable::OnOrder(Log* log, const Frame& frame, absl::Time now, Actions* out) {
  const absl::StatusOr<RebuildOrder> order = DecodeOrder(frame.payload.span());
  if (!order.ok()) return Diverged(log, std::string(order.status().message()), out);
  FaultPoint("rebuild.said");
  switch (order->what) {
    case RebuildOrder::What::kGo:
      log->whole_since = membership_->OwnerOf(log->facts.key, log->facts.home).since;
      log->stage = Stage::kIdle;
      ++stats_.recoveries;
      if (log->is_retired) return Forget(log);
      return Release(log, now, out);
    case RebuildOrder::What::kSet: {
      const auto saved = std::ranges::find(log->saved, order->start, &Snapshot::step);
      Frame init;
      const bool is_open =
          log->reported_value.has_value() && log->reported_value->header.step == order->start;
      if (is_open) {
        init = *log->reported_value;
      } else if (!log->facts.is_dense && log->value.has_value() &&
                 log->value->header.step == order->start) {
        init = *log->value;
      } else if (log->facts.is_dense && saved != log->saved.end()) {
        const FrameHeader header = StateHeader(FrameType::kInit,
                                               {.part = StatePart::kSnapshot,
                                                .key = log->facts.key,
                                                .num_elements = log->facts.elements},
                                               order->start, ++last_request_);
        init = MakeFrame(header, saved->bytes);
      } else {
        return Diverged(log, absl::StrFormat("no snapshot of step %d is here", order->start), out);
      }
      log->stage = Stage::kSet;
      return SubmitOwn(log, std::move(init), now, out);
    }
    case RebuildOrder::What::kRedo: {
      log->stage = Stage::kRedo;
      log->target = order->target;
      log->redo.clear();
      const std::vector<Init>& inits = log->reported;
      auto init = inits.begin();
      for (const Done& done : log->pushes) {
        const Step step = done.push.header.step;
        for (; init != inits.end() && init->after < step; ++init) {
          log->redo.push_back(init->frame);
        }
        if (step <= order->start || step > order->target) continue;
        log->redo.push_back(done.push);
        ++stats_.pushes_repeated;
      }
      for (; init != inits.end(); ++init) log->redo.push_back(init->frame);
      return SendNextOfRedo(log, now, out);
    }
    case RebuildOrder::What::kGive:
      log->target = order->target;
      log->give_until = now + kLongestDecode;
      return Give(log, now, out);
  }
}

void RecoveryTable::Give(Log* log, absl::Time now, Actions* out) {
  GivenReply given{.step = log->replied, .flags = log->replied_flags};
  std::optional<Buffer> replica;
  if (log->reply.has_value()) {
    const FrameHeader& header = log->reply->header;
    given.payload_step = header.step;
    given.base_step = header.base_step;
    given.codec = header.codec;
    given.payload = log->reply->payload.span();
    if (log->facts.replica != nullptr) {
      replica = log->facts.replica->CopyOf(header.step);
      if (!replica.has_value() && now < log->give_until) {
        log->stage = Stage::kAwait;
        giving_.push_back(log->facts.key);
        next_give_ = std::min(next_give_, now + kGivePause);
        return;
      }
    } else if (log->facts.copy != nullptr) {
      // Also before the reply is decoded, which tells the weights that it changes by itself.
      replica = log->facts.copy->CopyNow();
    }
    if (replica.has_value()) given.replica = replica->span();
    const bool lacks = log->facts.replica != nullptr && !replica.has_value();
    if (lacks || !CheckPayload(*log->reply).ok()) given = {.is_refusal = true};
  }
  log->stage = Stage::kGive;
  const FrameHeader header = StateHeader(
      FrameType::kInit,
      {.part = StatePart::kReply, .key = log->facts.key, .num_elements = log->facts.elements},
      log->target, ++last_request_);
  SubmitOwn(log, MakeFrame(header, EncodeGivenReply(given)), now, out);
}

void RecoveryTable::SendNextOfRedo(Log* log, absl::Time now, Actions* out) {
  if (!log->redo.empty()) {
    Frame next = std::move(log->redo.front());
    log->redo.pop_front();
    if (next.header.type == FrameType::kPush) StampSaved(*log, &next.header);
    FaultPoint("redo.half");
    return SubmitOwn(log, std::move(next), now, out);
  }
  // The caller's push of the target step has no answer: it is the last one that the server waits
  // for.
  if (log->open_push == 0 || log->open_push > log->target) {
    return Report(log, Stage::kConfirm, now, out);
  }
  log->stage = Stage::kOpen;
  SendParked(log, now, out);
}

void RecoveryTable::SendParked(Log* log, absl::Time now, Actions* out) {
  if (log->is_parked) SendCurrent(log, now, out);
}

void RecoveryTable::Release(Log* log, absl::Time now, Actions* out) {
  if (log->is_parked) {
    SendParked(log, now, out);
  } else if (!log->current.has_value() && IsSnapshotDue(*log)) {
    Save(log, now, out);
  }
}

void RecoveryTable::Diverged(Log* log, const std::string& how, Actions* out) {
  const absl::Status status = Aborted(
      "tensor '%s': its server was lost, and it cannot be rebuilt: %s; go on from a "
      "checkpoint",
      log->facts.tensor, how);
  LogError("%s", status.message());
  Append(Fail(status), out);
}

}  // namespace bdn
