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
#include "common/wire/message.h"
#include "worker/pipeline/request_runner.h"
#include "worker/tensor_table.h"

namespace bdn {

// What a worker asks of the servers besides exchanges, and waits for: broadcasts, and setting and
// fetching what they hold of a tensor. A key has an exchange or such a request, not both.
// Thread-safe; its state is guarded by the tensor table's lock.
class ServerRequests {
 public:
  // All are borrowed.
  ServerRequests(TensorTable* tensors, RequestRunner* requests, const Clock* clock)
      : tensors_(tensors), requests_(requests), clock_(clock) {}
  ServerRequests(const ServerRequests&) = delete;
  ServerRequests& operator=(const ServerRequests&) = delete;

  // See Client for what these mean. `tensor` is the id that the broadcast's name was declared with.
  absl::Status Broadcast(const std::string& name, uint32_t tensor, MutableByteSpan data, Rank root,
                         absl::Time deadline);
  absl::Status SetState(uint32_t tensor, StatePart part, std::span<const float> values, Step step,
                        absl::Time deadline);
  absl::Status GetState(uint32_t tensor, StatePart part, std::span<float> out, absl::Time deadline);
  absl::Status SetCounters(uint32_t tensor, const StateCounters& counters, Step step,
                           absl::Time deadline);
  absl::Status SetRule(std::span<const uint32_t> tensors, const std::string& rule,
                       absl::Time deadline);
  absl::StatusOr<StateCounters> GetCounters(uint32_t tensor, absl::Time deadline);
  // may_be_equal: `out` holds what the weights may be; those of each key that are, are not sent.
  absl::Status FetchWeights(uint32_t tensor, std::span<float> out, bool may_be_equal,
                            absl::Time deadline);

 private:
  using Answers = std::map<Key, Frame>;
  // A blocking caller, until its answers are there.
  struct Caller {
    size_t left = 0;
    absl::Status status;
    Answers answers;
  };
  // The part of a key's state that a request is about, if the key keeps it.
  using PartFn = std::function<std::optional<StatePart>(const DeclaredKey&)>;
  using PayloadFn = std::function<Buffer(const TensorPart&)>;

  // Submits the requests and waits for all answers, by key.
  absl::StatusOr<Answers> Ask(const std::string& what, std::vector<RequestTable::Request> requests,
                              absl::Time deadline);
  // False where some are not there by then.
  bool AwaitAnswers(const Caller& caller, absl::Time until);
  // ": waiting for server 0"; empty where that is not known.
  std::string WaitedForBy(const Caller& caller) const;
  // Numbers the requests and notes who waits. FailedPrecondition, and nothing changed: a key is
  // busy.
  absl::Status Register(const std::string& what, std::vector<RequestTable::Request>* requests,
                        Caller* caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  void OnAnswer(Key key, absl::StatusOr<Frame> answer);
  // The key's request is over.
  void Release(Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  bool IsWaiting(Key key, const Caller& caller) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_->mutex());
  // A request about a tensor's state for each of its keys that has the part, and the answers.
  // NotFound: none has it.
  absl::StatusOr<Answers> AskAboutState(uint32_t tensor, FrameType type, const PartFn& part_of,
                                        Step step, const PayloadFn& payload, absl::Time deadline);
  // Asks for floats and puts them into `out`, 0 where a key has no such part.
  absl::StatusOr<Answers> FetchFloats(uint32_t tensor, const PartFn& part_of, std::span<float> out,
                                      bool may_be_equal, absl::Time deadline);

  TensorTable* const tensors_;
  RequestRunner* const requests_;
  const Clock* const clock_;
  CondVar answered_;
  std::map<Key, Caller*> open_ ABSL_GUARDED_BY(tensors_->mutex());
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_SERVER_REQUESTS_H_
