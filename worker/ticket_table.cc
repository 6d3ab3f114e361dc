#include "worker/ticket_table.h"

#include <utility>

#include "common/base/status.h"

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
  return PushResult{options.step, all_absent && !nonfinite, nonfinite};
}

bool TicketTable::EndPartLocked(TicketId id, const PartEnd& end, std::vector<Ended>* ended) {
  Ticket& ticket = tickets_[id];
  if (ticket.status.ok()) ticket.status = end.status;
  ticket.nonfinite |= end.nonfinite;
  ticket.all_absent &= end.absent;
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
    any_ended |= EndPartLocked(
        segment.ticket,
        {.status = status, .absent = segment.absent_everywhere, .nonfinite = exchange.nonfinite},
        ended);
  }
  if (any_ended) changed_.SignalAll();
}

void TicketTable::Deliver(const std::vector<Ended>& ended) {
  for (const Ended& end : ended) {
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
    if (found->second.pending == 0) {
      absl::StatusOr<PushResult> result = found->second.Result();
      tickets_.erase(found);
      return result;
    }
    if (clock_->Now() >= deadline) return std::nullopt;
    clock_->WaitUntil(&changed_, &mu_, deadline);
  }
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
