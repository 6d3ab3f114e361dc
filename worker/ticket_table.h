#ifndef BANDONEON_WORKER_TICKET_TABLE_H_
#define BANDONEON_WORKER_TICKET_TABLE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/client.h"
#include "worker/pipeline/exchange.h"

namespace bdn {

// A table of tickets: the callers' exchanges of whole tensors, each of which ends when all its
// parts have ended. Callers wait for tickets here. Thread-safe; its lock is taken last, and no
// callback runs under it.
class TicketTable {
 public:
  using DoneFn = std::function<void(TicketId ticket, const absl::StatusOr<PushResult>& result)>;

  explicit TicketTable(const Clock* clock) : clock_(clock) {}
  TicketTable(const TicketTable&) = delete;
  TicketTable& operator=(const TicketTable&) = delete;

  struct Options {
    uint32_t tensor = 0;
    Step step = 0;
    size_t parts = 0;  // at least 1
    DoneFn done;
  };
  TicketId Open(Options options);

  // An ended ticket with a callback, to be given to Deliver when no lock is held.
  struct Ended {
    TicketId ticket;
    absl::StatusOr<PushResult> result;
    DoneFn done;
  };
  // The result of one part of a ticket.
  struct PartEnd {
    absl::Status status;
    bool absent = false;
    bool nonfinite = false;
    size_t guessed = 0;
  };
  void EndPart(TicketId ticket, const PartEnd& end, std::vector<Ended>* ended);
  // Ends one part of each of the exchange's tickets.
  void EndParts(const Exchange& exchange, const absl::Status& status, std::vector<Ended>* ended);
  // Runs the callbacks and removes the tickets.
  void Deliver(const std::vector<Ended>& ended);

  // Waits for a ticket until `deadline` and returns its result or error, which removes it; returns
  // nothing if it is still in flight then. NotFound: there is no such ticket.
  std::optional<absl::StatusOr<PushResult>> Wait(TicketId ticket, absl::Time deadline);

  // Does what Client::WaitAll does. `describe` returns what a ticket in flight waits for; it is
  // called under no lock, and its text is logged from time to time.
  absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                       const std::function<absl::Status(TicketId ticket)>& describe,
                       std::vector<PushResult>* results);

  // The tensor and the step of a ticket.
  struct Subject {
    uint32_t tensor;
    Step step;
  };
  // NotFound: there is no such ticket.
  absl::StatusOr<Subject> Find(TicketId ticket) const;
  uint64_t num_ended() const;

 private:
  struct Ticket {
    Options options;
    size_t pending = 0;  // parts that have not ended
    bool all_absent = true;
    bool nonfinite = false;
    size_t guessed = 0;
    absl::Status status;

    absl::StatusOr<PushResult> Result() const;
  };
  // Ends one part; returns whether it was the ticket's last.
  bool EndPartLocked(TicketId ticket, const PartEnd& end, std::vector<Ended>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  mutable Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<TicketId, Ticket> tickets_ ABSL_GUARDED_BY(mu_);
  TicketId last_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_ended_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_TICKET_TABLE_H_
