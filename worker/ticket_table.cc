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

void TicketTable::EndParts(const Exchange& exchange, const absl::Status& status,
                           std::vector<Ended>* ended) {
  MutexLock lock(&mu_);
  bool any_ended = false;
  for (const ExchangeSegment& segment : exchange.segments) {
    if (!segment.filled) continue;
    Ticket& ticket = tickets_[segment.ticket];
    if (ticket.status.ok()) ticket.status = status;
    ticket.nonfinite |= exchange.nonfinite;
    ticket.all_absent &= segment.absent_everywhere;
    if (--ticket.pending > 0) continue;
    any_ended = true;
    ++num_ended_;
    if (ticket.options.done) {
      ended->push_back({segment.ticket, ticket.status, std::move(ticket.options.done)});
    }
  }
  if (any_ended) changed_.SignalAll();
}

void TicketTable::Deliver(const std::vector<Ended>& ended) {
  for (const Ended& end : ended) {
    end.done(end.ticket, end.status);
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
      const Ticket ticket = std::move(found->second);
      tickets_.erase(found);
      if (!ticket.status.ok()) return ticket.status;
      return PushResult{ticket.options.step, ticket.all_absent && !ticket.nonfinite,
                        ticket.nonfinite};
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
