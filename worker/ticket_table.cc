#include "worker/ticket_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/error_fields.h"
#include "worker/long_waits.h"

namespace bdn {

TicketId TicketTable::Open(Options options) {
  MutexLock lock(&mu_);
  const TicketId id = ++last_ticket_;
  Ticket& ticket = tickets_[id];
  ticket.pending = options.parts;
  ticket.options = std::move(options);
  return id;
}

absl::StatusOr<PushResult> TicketTable::Ticket::Result() const {
  if (!status.ok()) return status;
  // Absent means that no part had a gradient; one part that is not finite makes the whole tensor
  // so.
  const size_t most = std::numeric_limits<uint32_t>::max();
  return PushResult{.step = options.step,
                    .absent = all_absent && !nonfinite,
                    .nonfinite = nonfinite,
                    .guessed = static_cast<uint32_t>(std::min(guessed, most))};
}

bool TicketTable::EndPartLocked(TicketId id, const PartEnd& end, std::vector<Ended>* ended) {
  Ticket& ticket = tickets_[id];
  // The first error is kept: later ones are often its consequences.
  if (ticket.status.ok()) ticket.status = end.status;
  ticket.nonfinite |= end.nonfinite;
  ticket.all_absent &= end.absent;
  ticket.guessed += end.guessed;
  if (--ticket.pending > 0) return false;
  ++num_ended_;
  if (ticket.options.done) {
    ended->push_back({id, ticket.Result(), std::move(ticket.options.done)});
  }
  return true;
}

void TicketTable::EndPart(TicketId ticket, const PartEnd& end, std::vector<Ended>* ended) {
  MutexLock lock(&mu_);
  if (EndPartLocked(ticket, end, ended)) changed_.SignalAll();
}

void TicketTable::EndParts(const Exchange& exchange, const absl::Status& status,
                           std::vector<Ended>* ended) {
  MutexLock lock(&mu_);
  bool any_ended = false;
  for (const ExchangeSegment& segment : exchange.segments) {
    if (!segment.filled) continue;
    any_ended |= EndPartLocked(segment.ticket,
                               {.status = status,
                                .absent = segment.absent_everywhere,
                                .nonfinite = exchange.nonfinite,
                                .guessed = segment.guessed},
                               ended);
  }
  if (any_ended) changed_.SignalAll();
}

void TicketTable::Deliver(const std::vector<Ended>& ended) {
  for (const Ended& end : ended) {
    // Under no lock: a callback may push again.
    end.done(end.ticket, end.result);
    MutexLock lock(&mu_);
    tickets_.erase(end.ticket);
  }
}

std::optional<absl::StatusOr<PushResult>> TicketTable::Wait(TicketId id, absl::Time deadline) {
  MutexLock lock(&mu_);
  for (;;) {
    const auto found = tickets_.find(id);
    if (found == tickets_.end()) return NotFound("no ticket %d is in flight", id);
    // Looked at before the time: a result that is there counts even with a timeout of 0.
    if (found->second.pending == 0) {
      absl::StatusOr<PushResult> result = found->second.Result();
      tickets_.erase(found);
      return result;
    }
    if (clock_->Now() >= deadline) return std::nullopt;
    clock_->WaitUntil(&changed_, &mu_, deadline);
  }
}

absl::Status TicketTable::WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                                  const std::function<absl::Status(TicketId ticket)>& describe,
                                  std::vector<PushResult>* results) {
  const absl::Time deadline = clock_->Now() + timeout;
  absl::Time report = clock_->Now() + kReportInterval;
  results->clear();
  results->reserve(tickets.size());
  for (const TicketId ticket : tickets) {
    for (;;) {
      const auto result = Wait(ticket, std::min(deadline, report));
      if (result.has_value()) {
        BDN_RETURN_IF_ERROR(result->status());
        results->push_back(**result);
        break;
      }
      // Without the lock, as it takes the tensor table's, which comes before this one.
      const absl::Status late = describe(ticket);
      if (clock_->Now() >= deadline) return late;
      report = clock_->Now() + kReportInterval;
      if (!absl::IsDeadlineExceeded(late)) continue;  // it has ended meanwhile
      LogWarning("still waiting: %s%s", late.message(),
                 WhyTheWaitGoesOn(GetErrorField(late, "waiting_for")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TicketTable::Subject> TicketTable::Find(TicketId ticket) const {
  MutexLock lock(&mu_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return NotFound("no ticket %d is in flight", ticket);
  return Subject{found->second.options.tensor, found->second.options.step};
}

uint64_t TicketTable::num_ended() const {
  MutexLock lock(&mu_);
  return num_ended_;
}

}  // namespace bdn
