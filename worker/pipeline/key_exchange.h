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
#include "common/wire/message.h"
#include "worker/pipeline/exchange.h"
#include "worker/pipeline/request_table.h"
#include "worker/pipeline/stages.h"

namespace bdn {

// The queue of one key's exchanges, which are carried out one after the other, and the state that
// its links keep between them. A state machine without thread, clock or socket:
//
//   Deposit (of every segment) -> Claim -> Encode -> OnAnswer ... OnAnswer -> Finish
//
// A push that is not answered in time may or may not have been counted. Its callers get an error
// and their tensors back, and the exchange goes on without them until its server has said which it
// was: only then is the key free for the next exchange, and the residual right.
//
// Not thread-safe, in two halves. The queue belongs to the holder of the tensor table's lock. A
// claimed exchange, and with it the residual, the momentum and the replica, belong without a lock
// to the thread that carries it out, from Claim to Finish. While the key is idle, these are read
// and set under the lock.
class KeyExchange {
 public:
  explicit KeyExchange(DeclaredKey key) : key_(std::move(key)) {}
  KeyExchange(const KeyExchange&) = delete;
  KeyExchange& operator=(const KeyExchange&) = delete;

  // These never change, and may be called on any thread.
  const DeclaredKey& key() const { return key_; }
  Key id() const { return key_.entry.key; }
  const std::string& first_tensor() const { return key_.tensor_names[0]; }

  // Returns the number of the next request about the state that the server holds for the key. To be
  // called by the owner of the claimed exchange, or under the lock while the key is idle.
  uint32_t NextRequestNumber() { return ++last_request_; }
  // Returns the step of the key's next broadcast, if it is a broadcast key. Under the lock.
  Step NextBroadcast() { return ++last_broadcast_; }

  // Lets the key begin where it stands at its server, for a worker that joins later: its next
  // broadcast is that of the next step, or it goes uncompressed. REQUIRES: is_idle(), and nothing
  // was exchanged yet.
  void BeginAt(const KeyPosition& position);

  // ---- The queue

  bool is_idle() const { return queue_.empty(); }
  bool is_in_flight() const { return claimed_ != nullptr; }
  // Whether ServerRequests has an open request about the key. The key has no exchange then.
  bool has_server_request() const { return has_server_request_; }
  void set_has_server_request(bool has) { has_server_request_ = has; }
  // Notes that the key's tensors are retired: nothing more is deposited.
  void Retire() { is_retired_ = true; }
  bool is_retired() const { return is_retired_; }
  // Returns whether the exchange in flight is the last one that can be sent without further pushes
  // by the caller.
  bool is_last_ready() const { return queue_.size() == 1 || !queue_[1]->is_complete(); }
  // Notes the time if an exchange waits behind one that was given back, unless one did before. To
  // be called after each change that may bring that about.
  void NoteHeldUp(absl::Time now);
  // Returns since when an exchange has waited so, or nothing if none does.
  std::optional<absl::Time> held_up_since() const { return held_up_since_; }
  // Returns the exchange of this step that waits or is in flight, or null.
  const Exchange* Find(Step step) const;
  const Exchange& front() const { return *queue_.front(); }

  // InvalidArgument: the request contradicts another that was deposited for its fused group in
  // `step`.
  absl::Status CheckFits(const std::string& tensor, Step step, const PushRequest& request) const;
  // Adds one segment to the exchange of `step`. `offset` and `elements` say which part of the
  // tensor it is; the tensor has request.data.n elements where there is data. REQUIRES: CheckFits
  // is OK.
  void Deposit(size_t segment, uint64_t offset, uint64_t elements, Step step, TicketId ticket,
               const PushRequest& request);
  // Claims the front of the queue if it is complete and not claimed yet. Returns false if there is
  // nothing to do.
  bool Claim();
  // Removes the front, which has ended, from the queue and returns it. REQUIRES: it was claimed.
  std::unique_ptr<Exchange> Finish();
  // Removes and returns all exchanges that are not in flight.
  std::deque<std::unique_ptr<Exchange>> TakeWaiting();
  // Removes and returns all exchanges. REQUIRES: none is in flight.
  std::deque<std::unique_ptr<Exchange>> TakeAll() { return std::exchange(queue_, {}); }

  // ---- The exchange that was claimed

  const Exchange& claimed() const { return *claimed_; }
  // Returns the most bytes that Encode's payload may have.
  size_t MaxPushBytes() const { return key_.link.codecs.Push(claimed_->step).MaxEncodedBytes(); }
  // Encodes the push, once for each exchange. After an error, which only a device can cause, the
  // exchange is over.
  absl::StatusOr<RequestTable::Request> Encode(const EncodeContext& context);
  // The next move of an exchange after an answer: its next request, or its end with a status. A
  // request together with an error means that no answer came in time: the exchange goes on, but its
  // callers must not wait for it.
  struct Next {
    std::optional<RequestTable::Request> request;
    absl::Status status;
  };
  // Takes the outcome of the last request.
  Next OnAnswer(const RequestTable::Outcome& outcome);
  // Lets the exchange go on without its callers, whose tensors it does not touch from now on.
  // Returns false if it already did. Under the lock.
  bool GiveBack();

  // ---- The residual, the momentum and the replica. REQUIRES for all: is_idle().

  // Returns the weights on which replies build; any thread may copy them at any time.
  std::shared_ptr<const Replica> replica() const { return memory_.replica; }
  // Keeps a copy of whole weights from now on, and returns it: any thread may copy it at any time.
  std::shared_ptr<const Replica> KeepCopy();
  bool keeps_copy() const { return memory_.copy != nullptr; }
  // Takes the weights of one segment, as a server has told them, into the copy.
  void AdoptCopy(size_t segment, std::span<const float> weights);
  // Ends the export of the link's measurements.
  void EndMonitor() { memory_.monitor.End(); }
  float previous_learning_rate() const { return memory_.previous_learning_rate; }
  void set_previous_learning_rate(float rate) { memory_.previous_learning_rate = rate; }
  // Copies a segment's part of a state, float32[its elements], to `out`; zeros where there is none.
  // FailedPrecondition: a device has lost it, and it must be set first. Other errors are a
  // device's.
  absl::Status CopyState(LinkState what, size_t segment, std::span<float> out);
  absl::Status SetState(LinkState what, size_t segment, std::span<const float> in);
  // Takes the replica of one segment as the exchange of `step` left it. The replica is complete,
  // and replies may build on it, once all segments are of one step.
  void AdoptReplica(size_t segment, Step step, std::span<const float> weights);

 private:
  RequestTable::Request PushRequestOf(const Exchange& exchange) const;
  RequestTable::Request FetchRequest(const Exchange& exchange);
  Next Ask(RequestTable::Request request);
  Next OnReply(const Frame& reply);
  Next OnReplica(const Frame& value);
  absl::Status Decode(const Frame& reply);
  // Takes back the change that the push made to residual and momentum.
  absl::Status Undo();
  // Hands the claimed exchange, and those of the next steps, over to the host, because the device
  // has no memory for it.
  absl::Status GoOnByHost(const absl::Status& why);
  // Notes that a device failed while it changed residual or momentum.
  void NoteLost(const absl::Status& status);
  Next End(const absl::Status& status);
  absl::Status Named(const absl::Status& status, const char* stage) const;

  const DeclaredKey key_;
  std::deque<std::unique_ptr<Exchange>> queue_;  // by step
  Exchange* claimed_ = nullptr;                  // the front of the queue, from Claim to Finish
  RequestTable::Request asked_;                  // the claimed exchange's last request
  bool has_server_request_ = false;
  bool is_retired_ = false;
  std::optional<absl::Time> held_up_since_;
  LinkMemory memory_;
  uint32_t last_request_ = 0;
  Step last_broadcast_ = 0;
  std::set<size_t> adopted_;  // the segments so far of a replica that is being fetched
  Step adopted_step_ = 0;     // the step that left those segments as they are
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_KEY_EXCHANGE_H_
