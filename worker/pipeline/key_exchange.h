#ifndef BANDONEON_WORKER_PIPELINE_KEY_EXCHANGE_H_
#define BANDONEON_WORKER_PIPELINE_KEY_EXCHANGE_H_

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/pipeline/exchange.h"
#include "worker/pipeline/request_table.h"
#include "worker/pipeline/stages.h"

namespace bdn {

// The exchanges of one key, one after the other, and what its links remember between them. A state
// machine without thread, clock or socket:
//
//   Deposit (of every segment) -> Claim -> Encode -> OnAnswer ... OnAnswer -> Finish
//
// A push that is not answered in time may have been counted or not. Its callers get an error and
// their tensors back, and the exchange goes on without them until its server has said which: only
// then the key is free for the next, and its memory right.
//
// Not thread-safe, in two halves. The queue belongs to whoever holds the lock of the tensor table.
// The exchange that was claimed, and the memory with it, belong to who claimed it, from Claim to
// Finish, without a lock. Memory is otherwise read and set under the lock, while the key is idle.
class KeyExchange {
 public:
  explicit KeyExchange(DeclaredKey key) : key_(std::move(key)) {}
  KeyExchange(const KeyExchange&) = delete;
  KeyExchange& operator=(const KeyExchange&) = delete;

  // Const, for any thread.
  const DeclaredKey& key() const { return key_; }
  Key id() const { return key_.entry.key; }
  const std::string& first_tensor() const { return key_.tensor_names[0]; }

  // The number of the next request about what its server holds of the key. For whoever has the key:
  // who claimed its exchange, or, while it is idle, who holds the lock.
  uint32_t NextRequestNumber() { return ++last_request_; }
  // The step of its next broadcast, where it is a key of those; under the lock.
  Step NextBroadcast() { return ++last_broadcast_; }

  // ---- The queue

  bool is_idle() const { return queue_.empty(); }
  bool is_in_flight() const { return claimed_ != nullptr; }
  // Whether its server is asked something else about the key meanwhile (ServerRequests): then it has
  // no exchange.
  bool has_server_request() const { return has_server_request_; }
  void set_has_server_request(bool has) { has_server_request_ = has; }
  // Its tensors are retired: nothing more is deposited.
  void Retire() { is_retired_ = true; }
  bool is_retired() const { return is_retired_; }
  // Whether what is in flight is all that can be sent without further pushes of the caller.
  bool is_last_ready() const { return queue_.size() == 1 || !queue_[1]->is_complete(); }
  // To be called after whatever may let something wait behind an exchange that was given back.
  void NoteHeldUp(absl::Time now);
  // Since when something has waited so; nothing does where it is none.
  std::optional<absl::Time> held_up_since() const { return held_up_since_; }
  // Null: no exchange of this step waits or is in flight.
  const Exchange* Find(Step step) const;
  const Exchange& front() const { return *queue_.front(); }

  // InvalidArgument when the request contradicts what was deposited for its group in `step`.
  absl::Status CheckFits(const std::string& tensor, Step step, const PushRequest& request) const;
  // Adds one segment to the exchange of `step`; `offset` and `elements` are its place in the
  // tensor, which has request.data.n elements where there is data. REQUIRES: CheckFits is OK.
  void Deposit(size_t segment, uint64_t offset, uint64_t elements, Step step, TicketId ticket,
               const PushRequest& request);
  // Takes the front in hand when it is complete and nobody has it. False: there is nothing to do.
  bool Claim();
  // Gives up the front, which is over, and returns it. REQUIRES: it was claimed.
  std::unique_ptr<Exchange> Finish();
  // Everything but what is in flight.
  std::deque<std::unique_ptr<Exchange>> TakeWaiting();
  // Everything that waits. REQUIRES: nothing is in flight.
  std::deque<std::unique_ptr<Exchange>> TakeAll() { return std::exchange(queue_, {}); }

  // ---- The exchange that was claimed

  const Exchange& claimed() const { return *claimed_; }
  // Most bytes that Encode's payload may have.
  size_t MaxPushBytes() const { return key_.link.codecs.Push(claimed_->step).MaxEncodedBytes(); }
  // The push, encoded. Once for each exchange. An error is a device's, and the end.
  absl::StatusOr<RequestTable::Request> Encode(const EncodeContext& context);
  // What an answer to the last request leads to: the next request, or the end and how it came. A
  // request with an error: there was no answer in time, and the callers must not wait for it.
  struct Next {
    std::optional<RequestTable::Request> request;
    absl::Status status;
  };
  Next OnAnswer(const RequestTable::Outcome& outcome);
  // The exchange goes on without its callers, whose tensors it does not touch any more. False: it
  // has been doing so already. Under the lock.
  bool GiveBack();

  // ---- The memory. REQUIRES for all: is_idle().

  // What was measured of the link is no more shown.
  void EndMonitor() { memory_.monitor.End(); }
  float previous_learning_rate() const { return memory_.previous_learning_rate; }
  void set_previous_learning_rate(float rate) { memory_.previous_learning_rate = rate; }
  // A segment's part, float32[its elements]; zeros where there is none. FailedPrecondition: a device has lost it, and
  // it is to be set first. Other errors are a device's.
  absl::Status CopyState(LinkState what, size_t segment, std::span<float> out);
  absl::Status SetState(LinkState what, size_t segment, std::span<const float> in);
  // The replica of one segment, as the exchange of `step` left it. It is complete, and replies may
  // build on it, once all segments are of one step.
  void AdoptReplica(size_t segment, Step step, std::span<const float> weights);

 private:
  RequestTable::Request PushRequestOf(const Exchange& exchange) const;
  RequestTable::Request FetchRequest(const Exchange& exchange);
  Next Ask(RequestTable::Request request);
  Next OnReply(const Frame& reply);
  Next OnReplica(const Frame& value);
  absl::Status Decode(const Frame& reply);
  // Takes back what the push did to residual and momentum.
  absl::Status Undo();
  // The device has no memory for the claimed exchange: the host carries it out, and those of the next steps.
  absl::Status GoOnByHost(const absl::Status& why);
  // Notes that a device failed while it changed residual or momentum.
  void NoteLost(const absl::Status& status);
  Next End(const absl::Status& status);
  absl::Status Named(const absl::Status& status, const char* stage) const;

  const DeclaredKey key_;
  std::deque<std::unique_ptr<Exchange>> queue_;  // by step
  Exchange* claimed_ = nullptr;                  // the front, while somebody has it
  RequestTable::Request asked_;                  // its last
  bool has_server_request_ = false;
  bool is_retired_ = false;
  std::optional<absl::Time> held_up_since_;
  LinkMemory memory_;
  uint32_t last_request_ = 0;
  Step last_broadcast_ = 0;
  std::set<size_t> adopted_;  // segments of a replica that is being fetched
  Step adopted_step_ = 0;     // and the step that left them so
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_KEY_EXCHANGE_H_
