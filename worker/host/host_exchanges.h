#ifndef BANDONEON_WORKER_HOST_HOST_EXCHANGES_H_
#define BANDONEON_WORKER_HOST_HOST_EXCHANGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "worker/host/host_channel.h"
#include "worker/host/host_processes.h"
#include "worker/host/host_rounds.h"
#include "worker/worker.h"

namespace bandoneon::host {
class Answer;
class Push;
class Pushes;
class Retired;
}  // namespace bandoneon::host

namespace bdn {

// The tensors that a host's processes have declared, and the rounds of their pushes. Each complete
// round is exchanged through the daemon's worker, and its end is sent to all processes.
// Thread-safe. No function of the worker is called under a lock, except for constants of the
// worker, and for calls about a link's state under setting_.
class HostExchanges {
 public:
  // Ends the job for all workers, on a thread of its own.
  using AbortFn = std::function<void(const std::string& reason)>;

  // All pointers are borrowed until the worker's pushes have ended. `arena` is the memory for
  // results.
  HostExchanges(std::shared_ptr<ShmArena> arena, HostProcesses* processes, AbortFn abort)
      : arena_(std::move(arena)), processes_(processes), abort_(std::move(abort)) {}
  HostExchanges(const HostExchanges&) = delete;
  HostExchanges& operator=(const HostExchanges&) = delete;

  // Exchanges through `worker` from now on.
  void Start(Worker* worker);
  // Ends the open rounds, and all that are pushed from now on, with `status`.
  void Fail(const absl::Status& status);

  // ---- What processes say: on the polling thread

  // Take messages of a process. InvalidArgument: the process breaks the protocol, and is to be cut
  // off.
  absl::Status OnPushes(const HostProcess& process, const bandoneon::host::Pushes& pushes);
  absl::Status OnRetired(const HostProcess& process, const bandoneon::host::Retired& retired);
  // Ends rounds that wait for the process of this local rank, which is leaving, with Aborted.
  void OnLeaving(int process);

  // ---- Tensors

  // Adds declared tensors that are new. ResourceExhausted: there is no memory for a result.
  absl::Status Add(std::span<const TensorDeclaration> tensors, std::span<const uint32_t> ids);
  // Retires tensors whose names are declared anew although some processes have not retired them.
  void RetireWhatIsDeclaredAnew(std::span<const TensorDeclaration> tensors);
  // Returns the failure. If it is about a tensor that only some processes have retired, it names
  // these processes and says what to do.
  absl::Status WithAdvice(absl::Status failure) const;
  // NotFound: the tensor was not declared, or it is retired.
  absl::StatusOr<uint64_t> ElementsOf(uint32_t tensor) const;
  // Returns the memory of a tensor's results. REQUIRES: the tensor is declared and not retired.
  ByteSpan ResultOf(uint32_t tensor) const;
  // Returns what a push of the tensor waits for, as an error.
  absl::Status DescribePush(uint32_t tensor) const;

  // Has all tensors stand where those of the worker do, which was taken into a job that runs, and
  // writes these steps. REQUIRES: nothing was pushed.
  absl::Status BeginWhereWorkerStands(bandoneon::host::Answer* answer);
  // Has one of them stand so, if no process has pushed it yet, and returns its step.
  absl::StatusOr<Step> BeginWhereWorkerStands(uint32_t tensor);

  // ---- State of the host's link

  // Makes a call about the state of the link for the process of this local rank. Residual and
  // momentum are the first process's to save; other processes read zeros. State that is the same in
  // all processes is the first process's to set; every process reads the replica. `values` is the
  // array that call->in borrows.
  absl::Status PerformAtLink(int process, StateCall* call, std::vector<float>* values);

 private:
  // A declared tensor. Shared by the table and by the rounds at the worker, which write to its
  // memory.
  struct HostTensor {
    explicit HostTensor(std::shared_ptr<ShmArena> of) : arena(std::move(of)) {}
    ~HostTensor();
    HostTensor(const HostTensor&) = delete;
    HostTensor& operator=(const HostTensor&) = delete;

    const std::shared_ptr<ShmArena> arena;  // owns its memory
    std::string name;
    DType dtype = DType::kFloat32;
    uint64_t elements = 0;
    MutableView result;             // float32, or float64; in the arena
    std::byte* left_out = nullptr;  // float32[elements]; null until a push first asks for it
    // The processes that have set a state since the last exchange: the values that they set are
    // added up.
    std::map<LinkState, std::set<int>> set_by;
    TicketId ticket = 0;      // of the worker, while it has a round
    std::set<int> done_with;  // the processes that have retired it
  };

  // Adds one push to its round, and returns the round if it is complete.
  absl::StatusOr<std::optional<HostRound>> AddPush(const HostProcess& process,
                                                   const bandoneon::host::Push& message,
                                                   absl::Status* wrong);
  void StartRounds(std::vector<HostRound> rounds);
  absl::StatusOr<std::shared_ptr<HostTensor>> FillRequest(const HostRound& round,
                                                          PushRequest* request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends a round that the worker has refused because its pushes do not fit; its processes may push
  // the step again.
  void Refuse(const HostRound& round, const absl::Status& why);
  void EndRound(const HostRound& round, const absl::StatusOr<PushResult>& result,
                bool undone = false);
  // Tells a process that its push has ended without a round.
  void EndPush(const HostProcess& process, uint64_t ticket, const absl::Status& status);
  // Removes tensors that all processes have retired.
  void Retire(const std::vector<uint32_t>& tensors);
  // Sets the residual or momentum of the host's link to the sum of the values that its processes
  // set. A process that sets a second time begins a new sum.
  absl::Status AddToLink(int process, StateCall* call, std::vector<float>* values);
  absl::StatusOr<HostTensor*> Find(uint32_t tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string NameOf(uint32_t tensor) const;

  const std::shared_ptr<ShmArena> arena_;
  HostProcesses* const processes_;
  const AbortFn abort_;
  Worker* worker_ = nullptr;  // const after Start

  // Lets one state of the link be set at a time; taken before mu_ and the worker's locks.
  Mutex setting_;
  mutable Mutex mu_;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  std::optional<HostRounds> rounds_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, std::shared_ptr<HostTensor>> tensors_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);  // of tensors_, by name
  uint32_t tensors_end_ ABSL_GUARDED_BY(mu_) = 0;  // all ids so far are below it
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_EXCHANGES_H_
