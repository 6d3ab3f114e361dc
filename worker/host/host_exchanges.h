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
class Push;
class Pushes;
class Retired;
}  // namespace bandoneon::host

namespace bdn {

// The tensors that a host's processes have declared, and the rounds of what they push: each
// complete round is exchanged through the daemon's worker, and what ends it tells all processes.
// Thread-safe. Of the worker nothing is called under a lock but what never changes, and calls about
// a link's state, under setting_.
class HostExchanges {
 public:
  // Ends the job for everybody, on a thread of its own.
  using AbortFn = std::function<void(const std::string& reason)>;

  // All are borrowed until the worker's pushes have ended. `arena` is the memory of results.
  HostExchanges(std::shared_ptr<ShmArena> arena, HostProcesses* processes, AbortFn abort)
      : arena_(std::move(arena)), processes_(processes), abort_(std::move(abort)) {}
  HostExchanges(const HostExchanges&) = delete;
  HostExchanges& operator=(const HostExchanges&) = delete;

  // Exchanges through `worker` from now on.
  void Start(Worker* worker);
  // Ends the open rounds, and all that are pushed from now on, with `status`.
  void Fail(const absl::Status& status);

  // ---- What processes say: on the polling thread

  // InvalidArgument: the process does not keep to the rules, and is to be cut off.
  absl::Status OnPushes(const HostProcess& process, const bandoneon::host::Pushes& pushes);
  absl::Status OnRetired(const HostProcess& process, const bandoneon::host::Retired& retired);
  // The process of this local rank is leaving: rounds that wait for it end with Aborted.
  void OnLeaving(int process);

  // ---- Tensors

  // Adds declared tensors, where they are new. ResourceExhausted: there is no memory for a result.
  absl::Status Add(std::span<const TensorDeclaration> tensors, std::span<const uint32_t> ids);
  // Retires what is declared anew although some processes have not retired it.
  void RetireWhatIsDeclaredAnew(std::span<const TensorDeclaration> tensors);
  // Returns the failure; where it names a tensor that only some are done with, it says who, and
  // what to do.
  absl::Status WithAdvice(absl::Status failure) const;
  // NotFound: it was not declared, or it is retired.
  absl::StatusOr<uint64_t> ElementsOf(uint32_t tensor) const;
  // Returns the bytes in which the results of a tensor are. REQUIRES: it is here.
  ByteSpan ResultOf(uint32_t tensor) const;
  // Says what a push of the tensor waits for, as an error.
  absl::Status DescribePush(uint32_t tensor) const;

  // ---- State of the host's link

  // Makes a call about it for the process of this local rank. What the link remembers is the first
  // process's to save, and what is the same at all, the first process's to set; the replica is
  // everybody's. `values` is what call->in borrows.
  absl::Status PerformAtLink(int process, StateCall* call, std::vector<float>* values);

 private:
  // A declared tensor. Shared by the table and the rounds that are with the worker, which write its
  // memory.
  struct HostTensor {
    explicit HostTensor(std::shared_ptr<ShmArena> of) : arena(std::move(of)) {}
    ~HostTensor();
    HostTensor(const HostTensor&) = delete;
    HostTensor& operator=(const HostTensor&) = delete;

    const std::shared_ptr<ShmArena> arena;  // that its memory is of
    std::string name;
    DType dtype = DType::kFloat32;
    uint64_t elements = 0;
    MutableView result;             // float32, or float64: in the arena
    std::byte* left_out = nullptr;  // float32[elements], once somebody wants it
    // Who has set a state since the last exchange: what they set adds up.
    std::map<LinkState, std::set<int>> set_by;
    TicketId ticket = 0;      // of the worker, while a round is with it
    std::set<int> done_with;  // processes that are
  };

  // Takes one push into its round; the round, where it is complete.
  absl::StatusOr<std::optional<HostRound>> AddPush(const HostProcess& process,
                                                   const bandoneon::host::Push& message,
                                                   absl::Status* wrong);
  void StartRounds(std::vector<HostRound> rounds);
  absl::StatusOr<std::shared_ptr<HostTensor>> FillRequest(const HostRound& round,
                                                          PushRequest* request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The worker does not take it, as its pushes do not fit: its processes may push the step again.
  void Refuse(const HostRound& round, const absl::Status& why);
  void EndRound(const HostRound& round, const absl::StatusOr<PushResult>& result,
                bool undone = false);
  // Tells a process that its push has ended without a round.
  void EndPush(const HostProcess& process, uint64_t ticket, const absl::Status& status);
  // All processes are done with these.
  void Retire(const std::vector<uint32_t>& tensors);
  // Sets what the host's link owes to the sum of what its processes set. Who sets twice begins
  // anew.
  absl::Status AddToLink(int process, StateCall* call, std::vector<float>* values);
  absl::StatusOr<HostTensor*> Find(uint32_t tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string NameOf(uint32_t tensor) const;

  const std::shared_ptr<ShmArena> arena_;
  HostProcesses* const processes_;
  const AbortFn abort_;
  Worker* worker_ = nullptr;  // const after Start

  Mutex setting_;  // one state of the link at a time; taken before mu_ and the worker's
  mutable Mutex mu_;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  std::optional<HostRounds> rounds_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, std::shared_ptr<HostTensor>> tensors_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);  // of these, by name
  uint32_t tensors_end_ ABSL_GUARDED_BY(mu_) = 0;                        // all ids so far are below
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_EXCHANGES_H_
