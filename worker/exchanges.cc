#include "worker/exchanges.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/error_fields.h"
#include "worker/long_waits.h"
#include "worker/push_check.h"

namespace bdn {
namespace {

// The interval at which a leaving worker looks whether servers have its pushes: a server's word
// that it has one is not signalled.
constexpr absl::Duration kHandOverPoll = absl::Milliseconds(50);

}  // namespace

Exchanges::Exchanges(const ExchangePipeline::Options& options, TensorTable* tensors,
                     RequestRunner* requests, Executor* executor, const Clock* clock,
                     Callbacks callbacks)
    : tensors_(tensors),
      requests_(requests),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      tickets_(clock),
      pipeline_(options, executor, requests,
                {.late = [this](KeyExchange* exchange,
                                const absl::Status& status) { return OnLate(exchange, status); },
                 .over = [this](KeyExchange* exchange,
                                const absl::Status& status) { Finish(exchange, status); }}) {}

// ---- From the caller's push to its end

absl::Status Exchanges::PushPullAll(std::span<PushRequest> requests,
                                    std::vector<TicketId>* tickets) {
  const absl::Time now = clock_->Now();
  std::vector<KeyExchange*> ready;
  absl::Status status;
  tickets->clear();
  tickets->reserve(requests.size());
  {
    MutexLock lock(tensors_->mutex());
    for (PushRequest& request : requests) {
      const absl::StatusOr<TicketId> ticket = Deposit(&request, now, &ready);
      status = ticket.status();
      if (!status.ok()) break;
      tickets->push_back(*ticket);
    }
  }
  // Without the lock: Start may encode and send at once, which calls the transport. Also after an
  // error: the requests before the refused one are in flight.
  for (KeyExchange* exchange : ready) pipeline_.Start(exchange);
  return status;
}

absl::StatusOr<TicketId> Exchanges::Deposit(PushRequest* request, absl::Time now,
                                            std::vector<KeyExchange*>* ready) {
  BDN_RETURN_IF_ERROR(tensors_->participation().CheckIsIn());
  BDN_ASSIGN_OR_RETURN(Tensor * tensor, tensors_->FindDense(request->tensor));
  CompleteRequest(tensor->declaration, request);
  BDN_RETURN_IF_ERROR(CheckPush(*request, *tensor));
  // All checks are done; from here on the push cannot fail, so its step is taken.
  const Step step = ++tensor->pushed;
  const TicketId ticket = tickets_.Open({.tensor = request->tensor,
                                         .step = step,
                                         .parts = tensor->parts.size(),
                                         .done = std::move(request->done)});
  for (const TensorPart& part : tensor->parts) {
    part.exchange->Deposit(part.segment, part.offset, part.elements, step, ticket, *request);
    // Before Claim: this push may be the one that begins to wait behind an exchange without an
    // answer.
    part.exchange->NoteHeldUp(now);
    if (part.exchange->Claim()) ready->push_back(part.exchange);
  }
  return ticket;
}

void Exchanges::Finish(KeyExchange* exchange, const absl::Status& status) {
  EndedTickets ended;
  bool start_next = false;
  Step highest;
  uint64_t ended_steps;
  std::unique_ptr<KeyExchange> gone;  // it was retired
  {
    MutexLock lock(tensors_->mutex());
    const std::unique_ptr<Exchange> finished = exchange->Finish();
    if (finished->step > highest_step_) ++ended_steps_;
    ended_steps = ended_steps_;
    highest = highest_step_ = std::max(highest_step_, finished->step);
    // The tickets of an exchange that was given back ended when it was.
    if (!finished->given_back) tickets_.EndParts(*finished, status, &ended);
    const absl::Status& over = tensors_->participation().over;
    if (over.ok()) {
      start_next = exchange->Claim();
    } else {
      EndQueue(exchange, over, &ended);
    }
    // `gone` is destroyed after the lock is released: it may hold much memory, and a device's.
    if (!start_next) gone = tensors_->RemoveIfUnused(exchange);
    changed_.SignalAll();
  }
  if (start_next) pipeline_.Start(exchange);
  callbacks_.over(highest, ended_steps);
  tickets_.Deliver(ended);
}

void Exchanges::NoteStep(Step step) {
  Step highest;
  uint64_t ended_steps;
  {
    MutexLock lock(tensors_->mutex());
    if (step > highest_step_) ++ended_steps_;
    ended_steps = ended_steps_;
    highest = highest_step_ = std::max(highest_step_, step);
    changed_.SignalAll();
  }
  callbacks_.over(highest, ended_steps);
}

// Gives an exchange without an answer back to its callers. Whether it was counted is found out
// without them. Nothing else of the key is sent before that is known, so pushes wait behind it;
// when one of them has waited for the requests' timeout, the job has failed.
absl::Duration Exchanges::OnLate(KeyExchange* exchange, const absl::Status& status) {
  const absl::Time now = clock_->Now();
  EndedTickets ended;
  absl::Duration patience = absl::InfiniteDuration();
  {
    MutexLock lock(tensors_->mutex());
    if (exchange->GiveBack()) tickets_.EndParts(exchange->claimed(), status, &ended);
    exchange->NoteHeldUp(now);
    const std::optional<absl::Time> since = exchange->held_up_since();
    if (since.has_value()) patience = *since + requests_->timeout() - now;
    changed_.SignalAll();
  }
  tickets_.Deliver(ended);
  if (callbacks_.late) callbacks_.late(std::string(status.message()));
  if (patience <= absl::ZeroDuration()) {
    callbacks_.stuck(
        absl::StrFormat("pushes wait behind one without an answer: %s", status.message()));
  }
  return patience;
}

// Incomplete exchanges of fused tensors would wait for ever for pushes that can come no more, so
// everything that has not begun ends.
void Exchanges::Retire(std::span<const uint32_t> tensors) {
  EndedTickets ended;
  std::vector<std::unique_ptr<KeyExchange>> gone;
  {
    MutexLock lock(tensors_->mutex());
    for (KeyExchange* const exchange : tensors_->Retire(tensors)) {
      for (const auto& waiting : exchange->TakeWaiting()) {
        tickets_.EndParts(*waiting, Cancelled("tensor '%s' was retired", exchange->first_tensor()),
                          &ended);
      }
      gone.push_back(tensors_->RemoveIfUnused(exchange));
    }
    changed_.SignalAll();
  }
  tickets_.Deliver(ended);
}

void Exchanges::EndQueue(KeyExchange* exchange, const absl::Status& status, EndedTickets* ended) {
  for (const auto& waiting : exchange->TakeAll()) tickets_.EndParts(*waiting, status, ended);
}

Exchanges::EndedTickets Exchanges::Stop(const absl::Status& over) {
  tensors_->participation().over = over;
  EndedTickets ended;
  for (const auto& [id, exchange] : tensors_->keys()) {
    // Exchanges in flight belong to stages. They end when the requests fail, and Finish then ends
    // the rest of their queues.
    if (!exchange->is_in_flight()) EndQueue(exchange.get(), over, &ended);
  }
  changed_.SignalAll();
  return ended;
}

void Exchanges::Fail(const absl::Status& status) {
  EndedTickets ended;
  {
    MutexLock lock(tensors_->mutex());
    // The first failure is the cause; later ones are its consequences.
    if (!tensors_->participation().failed.ok()) return;
    tensors_->participation().failed = status;
    ended = Stop(status);
  }
  // After the tensors were stopped, so that no callback of an ended request starts another
  // exchange.
  requests_->Fail(status);
  tickets_.Deliver(ended);
  if (callbacks_.failed) callbacks_.failed(status);
}

// ---- Waiting for tickets

absl::Status Exchanges::WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                                std::vector<PushResult>* results) {
  return tickets_.WaitAll(
      tickets, timeout, [this](TicketId ticket) { return DescribeWait(ticket); }, results);
}

absl::Status Exchanges::DescribeWait(TicketId ticket) const {
  BDN_ASSIGN_OR_RETURN(const TicketTable::Subject subject, tickets_.Find(ticket));
  MutexLock lock(tensors_->mutex());
  const Tensor* const tensor = tensors_->Find(subject.tensor);
  // If the tensor is not here, it was retired, and the exchange has ended.
  if (tensor == nullptr) return DeadlineExceeded("still in flight");
  return DescribeWait(*tensor, subject.step);
}

absl::Status Exchanges::DescribeWait(const Tensor& tensor, Step step) const {
  for (const TensorPart& part : tensor.parts) {
    const Exchange* exchange = part.exchange->Find(step);
    if (exchange != nullptr)
      return DescribeWait(*part.exchange, *exchange, tensor.declaration.name);
  }
  ErrorFields fields{
      .tensor = tensor.declaration.name, .step = std::to_string(step), .stage = "exchange"};
  // The exchanges of a table are not in the queues of its keys.
  for (const TensorPart& part : tensor.parts) {
    if (!fields.waiting_for.empty()) break;
    fields.waiting_for = requests_->WaitingFor(part.key);
  }
  return WithFields(DeadlineExceeded("still in flight"), fields);
}

absl::Status Exchanges::DescribeWait(const KeyExchange& key, const Exchange& exchange,
                                     const std::string& tensor) const {
  ErrorFields fields{.tensor = tensor, .step = std::to_string(exchange.step), .stage = "exchange"};
  const absl::Status late = DeadlineExceeded("still in flight");
  for (size_t i = 0; i < exchange.segments.size(); ++i) {
    if (exchange.segments[i].filled) continue;
    // The key's frame is not complete: this is the program's own doing, so the missing tensor is
    // named.
    fields.stage = "assemble";
    fields.waiting_for = "this worker's own push of '" + key.key().tensor_names[i] +
                         "', which shares a frame with it";
    return WithFields(late, fields);
  }
  fields.waiting_for = requests_->WaitingFor(key.id());
  if (fields.waiting_for.empty()) fields.stage = "encode or decode";
  return WithFields(late, fields);
}

absl::Status Exchanges::CheckIdle() const {
  MutexLock lock(tensors_->mutex());
  for (const auto& [id, exchange] : tensors_->keys()) {
    if (exchange->is_idle() && !exchange->has_server_request()) continue;
    return InFlightAtBoundary(exchange->first_tensor());
  }
  return absl::OkStatus();
}

// ---- Leaving

absl::Status Exchanges::PrepareToLeave(absl::Time deadline) {
  MutexLock lock(tensors_->mutex());
  Participation& participation = tensors_->participation();
  ++participation.leaving;
  // Other workers give up waiting for pushes that the servers do not have when this one leaves. So
  // nothing new is taken from here on, and the rest must arrive first.
  const absl::Status status = AwaitHandedOver(deadline);
  // The worker does not leave after all, and its caller may go on. After a failure there is nothing
  // to go on with.
  if (!status.ok() && participation.failed.ok()) --participation.leaving;
  return status;
}

void Exchanges::SetLeft(const absl::Status& over) {
  EndedTickets ended;
  {
    MutexLock lock(tensors_->mutex());
    tensors_->participation().left = true;
    ended = Stop(over);
  }
  requests_->Fail(over);
  tickets_.Deliver(ended);
}

absl::Status Exchanges::CheckHandedOver() const {
  for (const auto& [id, exchange] : tensors_->keys()) {
    if (exchange->has_server_request() && !requests_->IsAccepted(id)) {
      return DeadlineExceeded("tensor '%s': a call is in flight", exchange->key().tensor_names[0]);
    }
    if (!exchange->is_in_flight()) continue;
    // A push that a server has, and behind which nothing waits that could be sent, needs this
    // worker no more.
    if (exchange->is_last_ready() && requests_->IsAccepted(id)) continue;
    return DescribeWait(*exchange, exchange->front(), exchange->key().tensor_names[0]);
  }
  return absl::OkStatus();
}

// Waits until the servers have all pushes and requests of this worker.
absl::Status Exchanges::AwaitHandedOver(absl::Time deadline) {
  const absl::Status& failed = tensors_->participation().failed;
  absl::Time report = clock_->Now() + kReportInterval;
  absl::Status status = CheckHandedOver();
  while (failed.ok() && !status.ok() && clock_->Now() < deadline) {
    clock_->WaitUntil(&changed_, tensors_->mutex(),
                      std::min(deadline, clock_->Now() + kHandOverPoll));
    status = CheckHandedOver();
    if (status.ok() || clock_->Now() < report) continue;
    LogWarning("still waiting: leaving once servers have what was pushed: %s", status.message());
    report += kReportInterval;
  }
  return failed.ok() ? status : failed;
}

}  // namespace bdn
