#ifndef BANDONEON_WORKER_SERVER_REQUESTS_H_
#define BANDONEON_WORKER_SERVER_REQUESTS_H_

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/buffer.h"
#include "common/base/clock.h"
#include "worker/client.h"
#include "worker/pipeline/request_runner.h"
#include "worker/state_call.h"
#include "worker/tensor_table.h"

namespace bdn {

// The requests of a worker to the servers besides exchanges, with the wait for their answers:
// broadcasts, and reads and changes of tensors' state. A key has an exchange or such a request, not
// both. Thread-safe; its state is guarded by the tensor table's lock.
class ServerRequests {
 public:
  // All are borrowed.
  ServerRequests(TensorTable* tensors, RequestRunner* requests, const Clock* clock)
      : tensors_(tensors), requests_(requests), clock_(clock) {}
  ServerRequests(const ServerRequests&) = delete;
  ServerRequests& operator=(const ServerRequests&) = delete;

  // Makes a broadcast, as Client says, from a worker of this rank. `tensor` is the id with which
  // its name and size were declared.
  absl::Status Broadcast(const BroadcastCall& call, uint32_t tensor, absl::Time deadline);
  // Asks where these keys stand at their servers, for a worker that joins later. Keys that no
  // server has any more, because all workers are done with them, are left out.
  absl::StatusOr<std::map<Key, KeyPosition>> AskPositions(std::span<const Key> keys,
                                                          absl::Time deadline);
  // Makes a call about the state that servers hold, and blocks until all have answered. REQUIRES:
  // CheckStateCall has passed it.
  absl::Status Perform(StateCall* call, absl::Time deadline);

 private:
  using Answers = std::map<Key, Frame>;
  // A caller that blocks until its answers have come.
  struct Caller {
    size_t left = 0;  // answers to come
    absl::Status status;
    Answers answers;
    bool takes_not_found = false;  // such an error is an answer, too
  };
  // Returns the part of a key's state that a request is about, or nothing if the key does not keep
  // it.
  using PartFn = std::function<std::optional<StatePart>(const DeclaredKey&)>;
  using PayloadFn = std::function<Buffer(const TensorPart&)>;

  // Sends the requests and waits for all answers, by key.
  absl::StatusOr<Answers> Ask(const std::string& what, std::vector<RequestTable::Request> requests,
                              absl::Time deadline, bool takes_not_found = false);
  // Waits until the caller has all answers or an error. Returns false if the time is over before.
  bool AwaitAnswers(const Caller& caller, absl::Time until);
  // Returns ": waiting for server 0", or "" where that is not known.
  std::string WaitedForBy(const Caller& caller) const;
  // Numbers the requests and registers their caller. FailedPrecondition: a key is busy; then
  // nothing has changed.
  absl::Status Register(const std::string& what, std::vector<RequestTable::Request>* requests,
                        Caller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  void OnAnswer(Key key, absl::StatusOr<Frame> answer);
  // Ends the key's request.
  void Release(Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  bool IsWaiting(Key key, const Caller& caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  absl::Status SetState(const StateCall& call, absl::Time deadline);
  absl::Status GetCounters(StateCall* call, absl::Time deadline);
  absl::Status SetCounters(const StateCall& call, absl::Time deadline);
  absl::Status SetRule(const StateCall& call, absl::Time deadline);
  absl::Status FetchWeights(const StateCall& call, absl::Time deadline);
  // Sends a request about a tensor's state for each of its keys that has the part, and returns the
  // answers. NotFound: no key has it.
  absl::StatusOr<Answers> AskAboutState(uint32_t tensor, FrameType type, const PartFn& part_of,
                                        Step step, const PayloadFn& payload, absl::Time deadline);
  // Fetches floats into the call's `out`; 0 where a key has no such part.
  absl::StatusOr<Answers> FetchFloats(const StateCall& call, const PartFn& part_of,
                                      absl::Time deadline);

  TensorTable* const tensors_;
  RequestRunner* const requests_;
  const Clock* const clock_;
  CondVar answered_;
  std::map<Key, Caller*> open_ ABSL_GUARDED_BY(tensors_->mutex());
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_SERVER_REQUESTS_H_
