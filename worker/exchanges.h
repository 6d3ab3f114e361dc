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

// The exchanges of a worker, from the callers' push to what they waited for: each goes into the
// queues of its tensor's keys, the pipeline carries out what is at a queue's front, and its ticket
// ends when all its keys are done. Thread-safe; its state is guarded by the tensor table's lock,
// and no callback runs under it.
class Exchanges {
 public:
  struct Callbacks {
    // One of a key has ended; `highest` is the highest step so far, and `ended` how often it rose.
    std::function<void(Step highest, uint64_t ended)> over;
    // The job cannot go on.
    std::function<void(const std::string& reason)> stuck;
    // Optional: it does not, with this.
    std::function<void(const absl::Status& status)> failed;
  };

  // All are borrowed. The executor must have run everything that is queued before this goes.
  Exchanges(const ExchangePipeline::Options& options, TensorTable* tensors, RequestRunner* requests,
            Executor* executor, const Clock* clock, Callbacks callbacks);
  Exchanges(const Exchanges&) = delete;
  Exchanges& operator=(const Exchanges&) = delete;

  // See Client.
  absl::Status PushPullAll(std::span<PushRequest> requests, std::vector<TicketId>* tickets);
  absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                       std::vector<PushResult>* results);
  // What a ticket is in flight for, as the error of a Wait that has timed out.
  absl::Status DescribeWait(TicketId ticket) const;

  // See Client. REQUIRES: TensorTable::CheckRetire was OK of these.
  void Retire(std::span<const uint32_t> tensors);

  // The job has failed, if it had not before: nothing more begins, and all that was asked of the
  // servers ends, with `status`.
  void Fail(const absl::Status& status);

  // This worker is leaving: takes nothing new, and waits until the servers have everything that was
  // started here, requests about a tensor's state included. DeadlineExceeded, and it leaves no more,
  // names what they may not have; else the job's failure.
  absl::Status PrepareToLeave(absl::Time deadline);
  // It has left: what is still open ends with `over`.
  void SetLeft(const absl::Status& over);

  Step highest_step() const {
    MutexLock lock(tensors_->mutex());
    return highest_step_;
  }
  uint64_t num_tickets_ended() const { return tickets_.num_ended(); }

 private:
  using EndedTickets = std::vector<TicketTable::Ended>;

  // The request's ticket; adds the keys that can start to `ready`.
  absl::StatusOr<TicketId> Deposit(PushRequest* request, absl::Time now,
                                   std::vector<KeyExchange*>* ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());

  // Of the pipeline.
  absl::Duration OnLate(KeyExchange* exchange, const absl::Status& status);
  void Finish(KeyExchange* exchange, const absl::Status& status);

  void EndQueue(KeyExchange* exchange, const absl::Status& status, EndedTickets* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  // Nothing more begins; what has not begun ends, with `over`.
  EndedTickets Stop(const absl::Status& over) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::Status AwaitHandedOver(absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::Status CheckHandedOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());

  // Names the first of the tensor's keys that is not done with the step, its stage, and whom it
  // waits for.
  absl::Status DescribeWait(const Tensor& tensor, Step step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::Status DescribeWait(const KeyExchange& key, const Exchange& exchange,
                            const std::string& tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());

  TensorTable* const tensors_;
  RequestRunner* const requests_;
  const Clock* const clock_;
  const Callbacks callbacks_;
  CondVar changed_;  // an exchange is over, or nothing more begins
  Step highest_step_ ABSL_GUARDED_BY(tensors_->mutex()) = 0;
  uint64_t ended_steps_ ABSL_GUARDED_BY(tensors_->mutex()) = 0;
  TicketTable tickets_;
  ExchangePipeline pipeline_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_EXCHANGES_H_
