#ifndef BANDONEON_WORKER_WORKER_H_
#define BANDONEON_WORKER_WORKER_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/buffer.h"
#include "common/base/executor.h"
#include "common/base/mutex.h"
#include "common/cluster/control_plane.h"
#include "common/cluster/credentials.h"
#include "common/transport/transport.h"
#include "common/wire/message.h"
#include "worker/exchange.h"
#include "worker/pipeline/request_runner.h"
#include "worker/pipeline/stage_queue.h"
#include "worker/pipeline/stages.h"

namespace bdn {

// One tensor's exchange, as its caller asks for it. The data is read, then overwritten.
struct PushRequest {
  uint32_t tensor = 0;  // from Declare
  MutableView data;     // null with `absent` when the result is not wanted
  bool absent = false;
  bool notify = false;  // the ticket also comes out of NextDone
  int priority = 0;
  float weight = 1.0f;
  float loss_scale = 1.0f;
  float learning_rate = 0.0f;
  // Optional, float32[elements]: what the codec leaves out of this push, p - decode(encode(p)) of p
  // = weight / loss_scale * data. Unchanged where absent. Only where the push has no memory of its
  // own.
  float* left_out = nullptr;
  // Optional: runs on a thread of ours and gives the ticket up; Wait is then not for it.
  std::function<void(TicketId ticket, const absl::Status& status)> done;
};

struct PushResult {
  Step step = 0;
  bool absent = false;     // nobody had a gradient; the data is unchanged
  bool nonfinite = false;  // somebody's was not finite; the data is NaN
};

// What this worker's end of a link remembers. kReplica: of weights that servers hold.
// kLearningRate: of the step that left the residual, one number.
enum class LinkState { kResidual, kMomentum, kReplica, kLearningRate };

// A worker of a job: declares tensors, exchanges them through the pipeline (encode, exchange,
// decode, deliver), broadcasts, meets the others at barriers. Thread-safe. Every wait ends, and its
// error names tensor, step, stage and whom it waits for.
class Worker {
 public:
  struct Options {
    JoinRequest join;         // role is filled in
    Credentials credentials;  // shown to the servers
    int num_threads = 2;
    size_t max_bytes_in_flight = size_t{64} << 20;
    absl::Duration join_timeout = absl::Minutes(2);
    absl::Duration wait_timeout = absl::Minutes(30);  // of one exchange
    absl::Duration probe_interval = absl::Seconds(1);
  };

  // Joins and waits until all nodes have joined.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const Options& options,
                                                        std::unique_ptr<ControlPlane> control,
                                                        std::unique_ptr<Transport> transport);
  // Ends every wait with Cancelled. Unless Leave succeeded, ends the job for everybody.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  Rank rank() const { return joined_.rank; }
  int size() const { return joined_.config.num_workers; }
  NodeId node() const { return joined_.node; }
  // As of the join.
  const std::vector<NodeInfo>& servers() const { return joined_.membership->servers; }

  // Ids of the tensors, in order. Collective: see ControlPlane::Declare. Those declared before with
  // the same facts are answered at once; with others, InvalidArgument says what differs.
  absl::StatusOr<std::vector<uint32_t>> Declare(std::vector<TensorDeclaration> tensors,
                                                absl::Duration timeout);

  // `data` as a view of the tensor's declared type and size. NotFound: it was not declared.
  absl::StatusOr<MutableView> ViewOf(uint32_t tensor, void* data) const;
  // Starts an exchange. InvalidArgument, and nothing has changed, for a request that does not fit
  // its declaration; the job's failure once there is one.
  absl::StatusOr<TicketId> PushPull(PushRequest request);
  // Waits for a ticket and gives it up. DeadlineExceeded: it is still in flight, and the error
  // names what it waits for. NotFound: no such ticket.
  absl::StatusOr<PushResult> Wait(TicketId ticket, absl::Duration timeout);
  // The next ticket with `notify` that ended, each once. Cancelled after Wake or in destruction.
  absl::StatusOr<TicketId> NextDone(absl::Duration timeout);
  void Wake();

  // Overwrites `data` with the root's on every worker. Collective; the name is declared on first
  // use.
  absl::Status Broadcast(const std::string& name, MutableByteSpan data, Rank root,
                         absl::Duration timeout);
  absl::Status Barrier(const std::string& name, absl::Duration timeout);

  // Waits until the servers have all that was started here, then until all workers are leaving,
  // up to `timeout` each. DeadlineExceeded of the first wait names what is in flight and has
  // changed nothing; of the second it names who is missing, and the job is over. Meanwhile nothing
  // new may be asked of the others or the servers: FailedPrecondition. What has no answer when all
  // have left ends with Aborted.
  absl::Status Leave(absl::Duration timeout);
  // Ends the job for everybody; the error names this worker and `reason`.
  absl::Status Abort(const std::string& reason);

  // float32[elements of the tensor], or [1] for kLearningRate; zeros where there is none.
  // FailedPrecondition while the tensor is in flight.
  absl::Status GetState(uint32_t tensor, LinkState what, std::span<float> out) const;
  absl::Status SetState(uint32_t tensor, LinkState what, std::span<const float> in);
  absl::StatusOr<Step> GetStep(uint32_t tensor) const;
  // The next push will be step + 1. InvalidArgument: the tensor is past it. FailedPrecondition: it
  // is in flight.
  absl::Status SetStep(uint32_t tensor, Step step);

  // What the servers hold of a tensor. Blocking; FailedPrecondition while it is in flight here.
  // SetServerState: by one rank only, between steps, while no worker pushes it; also sets the step
  // that it stands at, and the replica from the weights. Floats are finite, elements of the tensor.
  // NotFound: its rule and codec keep no such part. Where only some of its partitions keep it
  // (those too small to be compressed do not), the others' is 0.
  absl::Status SetServerState(uint32_t tensor, StatePart part, std::span<const float> values,
                              Step step, absl::Duration timeout);
  absl::Status GetServerState(uint32_t tensor, StatePart part, std::span<float> out,
                              absl::Duration timeout);
  absl::Status SetServerCounters(uint32_t tensor, const StateCounters& counters, Step step,
                                 absl::Duration timeout);
  absl::StatusOr<StateCounters> GetServerCounters(uint32_t tensor, absl::Duration timeout);
  // The weights as every worker holds them, which later replies build on: every worker calls it
  // after they were set and before its first push (or its first reply fetches them).
  absl::Status FetchWeights(uint32_t tensor, std::span<float> out, absl::Duration timeout);

  // Counters, as a JSON object.
  std::string StatsJson() const;

 private:
  struct Ticket {
    uint32_t tensor = 0;
    Step step = 0;
    int pending = 0;  // partitions
    bool notify = false;
    bool all_absent = true;
    bool nonfinite = false;
    absl::Status status;
    std::function<void(TicketId, const absl::Status&)> done;
  };
  struct TensorPart {
    WorkerKey* key;
    size_t segment;
    uint64_t offset;  // in the tensor
    uint64_t elements;
  };
  struct Tensor {
    TensorDeclaration declaration;
    std::vector<TensorPart> parts;
    Step pushed = 0;
    Step broadcasts = 0;
  };
  // A blocking caller of Broadcast, until its parts are there.
  struct Rendezvous {
    size_t left = 0;
    absl::Status status;
    std::map<Key, Frame> values;
  };
  // A ticket that ended, to be told about when no lock is held.
  struct Ended {
    TicketId ticket;
    absl::Status status;
    std::function<void(TicketId, const absl::Status&)> done;
  };

  Worker(const Options& options, std::unique_ptr<ControlPlane> control,
         std::unique_ptr<Transport> transport);
  absl::Status Start();

  absl::Status AddKeys(const DeclareResult& declared) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const Tensor*> FindDense(uint32_t id) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status CheckRequest(const PushRequest& request) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Puts one tensor's part into the exchange of its step; InvalidArgument before any change when
  // what it says contradicts the others of its group.
  absl::Status CheckFits(const Tensor& tensor, const PushRequest& request) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Deposit(const TensorPart& part, Step step, TicketId ticket, const PushRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the front is complete and nobody holds it; then it is now held by the caller, who
  // starts it.
  bool ClaimFront(WorkerKey* key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartEncode(WorkerKey* key);
  void RunEncode(WorkerKey* key, Exchange* exchange, size_t budget);
  void OnAnswer(Key key, Step step, absl::StatusOr<Frame> answer);
  void RunDecode(WorkerKey* key, Exchange* exchange, const absl::StatusOr<Frame>& answer);
  void Submit(WorkerKey* key, Exchange* exchange, std::function<void()> sent);
  void Finish(WorkerKey* key, const absl::Status& status);
  void EndSegments(const Exchange& exchange, const absl::Status& status, std::vector<Ended>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndQueue(WorkerKey* key, const absl::Status& status, std::vector<Ended>* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of what is not in flight.
  std::vector<Ended> EndQueues(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver(const std::vector<Ended>& ended);
  void FailJob(const absl::Status& status);
  absl::Status DescribeWait(const Ticket& ticket) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status CheckTakesPart() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status CheckHandedOver() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  absl::Status CheckStateSize(const Tensor& tensor, size_t elements) const;
  absl::Status CheckStateAccess(const Tensor& tensor, LinkState what, size_t size) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Asks for the replica of the next segment that a reply builds on.
  void SubmitFetch(WorkerKey* key, const Exchange& exchange);
  // Puts the requests to the servers and waits for all answers, by key.
  absl::StatusOr<std::map<Key, Frame>> Ask(const std::string& what,
                                           std::vector<RequestTable::Request> requests,
                                           absl::Time deadline);
  // The part of a key's state that a request is about, if any.
  using PartFn = std::function<std::optional<StatePart>(const WorkerKey&)>;
  // A request about a tensor's state for each of its keys that has the part, and the answers.
  // NotFound: none has it.
  absl::StatusOr<std::map<Key, Frame>> AskAboutState(
      uint32_t tensor, FrameType type, const PartFn& part_of, Step step,
      const std::function<Buffer(const TensorPart&)>& payload, absl::Duration timeout);
  // Asks for floats and puts them into `out`, 0 where a key has no such part.
  absl::StatusOr<std::map<Key, Frame>> FetchFloats(uint32_t tensor, const PartFn& part_of,
                                                   std::span<float> out, absl::Duration timeout);

  // The requests that a broadcast asks: the root's are inits, the others' are fetches.
  std::vector<RequestTable::Request> BroadcastRequests(Tensor* tensor, ByteSpan data, Rank root)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const std::unique_ptr<ControlPlane> control_;
  const std::unique_ptr<Transport> transport_;
  BufferPool pool_;
  JoinResult joined_;  // const after Start

  mutable Mutex mu_;
  CondVar changed_;  // a ticket ended, a rendezvous was met, somebody was woken, the job failed
  absl::flat_hash_map<std::string, uint32_t> tensor_ids_ ABSL_GUARDED_BY(mu_);
  std::deque<Tensor> tensors_ ABSL_GUARDED_BY(mu_);  // by id; stable addresses
  std::map<Key, std::unique_ptr<WorkerKey>> keys_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<TicketId, Ticket> tickets_ ABSL_GUARDED_BY(mu_);
  std::deque<TicketId> done_ ABSL_GUARDED_BY(mu_);  // for NextDone
  std::map<Key, Rendezvous*> rendezvous_ ABSL_GUARDED_BY(mu_);
  TicketId last_ticket_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t tickets_ended_ ABSL_GUARDED_BY(mu_) = 0;
  Step highest_step_ ABSL_GUARDED_BY(mu_) = 0;
  int wakes_ ABSL_GUARDED_BY(mu_) = 0;
  int leaving_ ABSL_GUARDED_BY(mu_) = 0;  // calls of Leave that did not give up
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);

  Mutex declare_mu_;  // one declaration call at a time, in the callers' order
  // Made in Start, taken down in the destructor in an order of its own.
  std::unique_ptr<RequestRunner> requests_;
  std::unique_ptr<StageQueue> queue_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_WORKER_H_
