#ifndef BANDONEON_WORKER_EXCHANGES_H_
#define BANDONEON_WORKER_EXCHANGES_H_

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/executor.h"
#include "common/base/mutex.h"
#include "worker/client.h"
#include "worker/pipeline/exchange_pipeline.h"
#include "worker/pipeline/request_runner.h"
#include "worker/tensor_table.h"
#include "worker/ticket_table.h"

namespace bdn {

// The exchanges of a worker, from the callers' pushes to their results. A push goes into the queues
// of its tensor's keys, the pipeline carries out the exchange at the front of each queue, and the
// push's ticket ends when all of its keys are done. Thread-safe; its state is guarded by the tensor
// table's lock, and no callback runs under that.
class Exchanges {
 public:
  // Notifications to the worker. Each is called without a lock.
  struct Callbacks {
    // An exchange of a key has ended. `highest` is the highest step so far, and `ended` counts how
    // often that rose.
    std::function<void(Step highest, uint64_t ended)> over;
    // Optional. An exchange was not answered in time; `why` says whose answer is missing.
    std::function<void(const std::string& why)> late;
    // The job cannot go on, because pushes wait behind one that gets no answer.
    std::function<void(const std::string& reason)> stuck;
    // Optional. Called once with the error that ended the job.
    std::function<void(const absl::Status& status)> failed;
  };

  // All are borrowed. The executor must have run all queued work before this is destroyed.
  Exchanges(const ExchangePipeline::Options& options, TensorTable* tensors, RequestRunner* requests,
            Executor* executor, const Clock* clock, Callbacks callbacks);
  Exchanges(const Exchanges&) = delete;
  Exchanges& operator=(const Exchanges&) = delete;

  // See Client.
  absl::Status PushPullAll(std::span<PushRequest> requests, std::vector<TicketId>* tickets);
  absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                       std::vector<PushResult>* results);
  // Returns what a ticket waits for, as the error of a Wait that has timed out.
  absl::Status DescribeWait(TicketId ticket) const;

  // See Client. REQUIRES: TensorTable::CheckRetire returned OK for these.
  void Retire(std::span<const uint32_t> tensors);

  // Notes that the job has failed, unless it had failed before: nothing more begins, and all open
  // requests to servers end with `status`.
  void Fail(const absl::Status& status);

  // OK if nothing of this worker is in flight. FailedPrecondition names the tensor.
  absl::Status CheckIdle() const;

  // Begins to leave: refuses new work, and waits until the servers have everything that was started
  // here, requests about tensors' state included. DeadlineExceeded names what they may not have,
  // and the worker leaves no more. Else the job's failure.
  absl::Status PrepareToLeave(absl::Time deadline);
  // Notes that the worker has left: everything still open ends with `over`.
  void SetLeft(const absl::Status& over);

  // Notes that a step of a table has ended, as the exchanges of dense keys do themselves.
  void NoteStep(Step step);
  // Returns the table of all tickets, for exchanges of another kind.
  TicketTable* tickets() { return &tickets_; }

  Step highest_step() const {
    MutexLock lock(tensors_->mutex());
    return highest_step_;
  }
  uint64_t num_tickets_ended() const { return tickets_.num_ended(); }

 private:
  using EndedTickets = std::vector<TicketTable::Ended>;

  // Queues a request and returns its ticket. Adds the keys whose exchange can start to `ready`.
  absl::StatusOr<TicketId> Deposit(PushRequest* request, absl::Time now,
                                   std::vector<KeyExchange*>* ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());

  // Callbacks of the pipeline.
  absl::Duration OnLate(KeyExchange* exchange, const absl::Status& status);
  void Finish(KeyExchange* exchange, const absl::Status& status);

  void EndQueue(KeyExchange* exchange, const absl::Status& status, EndedTickets* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  // Lets nothing more begin, and ends with `over` the exchanges that have not begun.
  EndedTickets Stop(const absl::Status& over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::Status AwaitHandedOver(absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::Status CheckHandedOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());

  // Returns an error that names the first of the tensor's keys that is not done with the step, its
  // stage, and the nodes for which it waits.
  absl::Status DescribeWait(const Tensor& tensor, Step step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::Status DescribeWait(const KeyExchange& key, const Exchange& exchange,
                            const std::string& tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());

  TensorTable* const tensors_;
  RequestRunner* const requests_;
  const Clock* const clock_;
  const Callbacks callbacks_;
  CondVar changed_;  // an exchange has ended, or nothing more begins
  Step highest_step_ ABSL_GUARDED_BY(tensors_->mutex()) = 0;
  uint64_t ended_steps_ ABSL_GUARDED_BY(tensors_->mutex()) = 0;
  TicketTable tickets_;
  ExchangePipeline pipeline_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_EXCHANGES_H_
