#ifndef BANDONEON_WORKER_HOST_HOST_CALLS_H_
#define BANDONEON_WORKER_HOST_HOST_CALLS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/buffer.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/telemetry/registry.h"
#include "worker/host/call_threads.h"
#include "worker/host/host_channel.h"
#include "worker/host/host_exchanges.h"
#include "worker/host/host_gather.h"
#include "worker/host/host_processes.h"
#include "worker/worker.h"

namespace bandoneon::host {
class Answer;
class Call;
}  // namespace bandoneon::host

namespace bdn {

// The calls of a host's processes: calls that each process makes for itself, and calls that all of
// them make together, which the daemon's worker makes once. Each call that blocks has a thread of
// its own. Thread-safe.
class HostCalls {
 public:
  // Notes that this host has left the job, which goes on without it, because a process has asked
  // for that, for this reason.
  using DepartedFn = std::function<void(const std::string& reason)>;

  // All pointers are borrowed until `threads` are joined. Answers are made in memory of `arena`.
  HostCalls(std::shared_ptr<ShmArena> arena, const Clock* clock, HostProcesses* processes,
            HostExchanges* exchanges, CallThreads* threads, DepartedFn departed);
  HostCalls(const HostCalls&) = delete;
  HostCalls& operator=(const HostCalls&) = delete;

  // Makes calls through `worker` from now on, and reports the counters of `telemetry` to processes;
  // both are borrowed.
  void Start(Worker* worker, const Registry* telemetry);
  // Ends the calls that wait for other processes, and all that are made from now on, with `status`.
  void Fail(const absl::Status& status);
  // Drops the calls that wait for other processes. REQUIRES: the threads are joined.
  void Clear();

  // ---- The polling thread

  // Takes a call of a process. InvalidArgument: the process breaks the protocol, and is to be cut
  // off.
  absl::Status OnCall(const HostProcessRef& process, bandoneon::host::Call call);
  // Frees the data of the answer to this call, which the process has copied.
  void OnTaken(const HostProcess& process, uint64_t call);
  // Frees the answers that an attached process, which is gone, has not copied.
  void OnGone(const HostProcess& process);
  // Returns whether this host leaves, or has left, the job because a process has asked for that.
  bool departs() const { return departs_; }
  // Ends calls whose time is over. Returns the reason why the job is over if one of them was
  // leaving, else "".
  std::string OnTime();
  absl::Time NextTime() const;

 private:
  struct OpenCall {
    HostProcessRef process;
    std::shared_ptr<const bandoneon::host::Call> call;
    HostChannel::Bytes data;
    absl::Time deadline;
  };
  using Calls = std::vector<OpenCall>;  // by local rank
  // The open calls of one process.
  struct OfProcess {
    std::map<uint64_t, Buffer> answers;  // data that it has not copied yet, by call
    std::set<uint64_t> open;
  };
  // The outcome of a call's arrival.
  struct Arrival {
    absl::Status refused;
    bool is_gathered = false;
    Calls together;  // the calls of all processes, if this is the last of them
    std::vector<HostGather::Ended> ended;
  };

  // Registers the call as open, with the data that it brings. InvalidArgument: as for OnCall.
  // `refused` gets the error with which the call is to be answered, if any.
  absl::Status Register(OpenCall* open, absl::Status* refused);
  Arrival Gather(const OpenCall& open);
  // Returns the number of bytes of data that a call brings; 0: it brings none.
  absl::StatusOr<size_t> BytesOfData(const bandoneon::host::Call& call) const;
  OpenCall TakeCall(const HostGather::Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndGathered(const std::vector<HostGather::Ended>& ended);
  void Answer(const OpenCall& open, bandoneon::host::Answer answer, const absl::Status& status,
              Buffer data = {});
  void AnswerAll(const Calls& calls, const absl::Status& status);

  // ---- Each on a thread of its own

  void Serve(OpenCall call);
  absl::Status ServeOne(const OpenCall& open, bandoneon::host::Answer* answer, Buffer* data);
  void TellStats(bandoneon::host::Answer* answer) const;
  absl::Status Perform(const OpenCall& open, bandoneon::host::Answer* answer, Buffer* data);
  // Runs `body`, with the time that it may take, while no other call asks the servers about
  // tensors' state, because tensors share keys. Calls run one after the other in the order of
  // arrival. A call that only reads gives way to others from time to time, because it may wait for
  // state that one of them is to set.
  template <typename Body>
  absl::Status OnServers(const OpenCall& open, bool reads, const Body& body);
  void ServeTogether(const Calls& calls);
  absl::Status Declare(const Calls& calls, std::vector<bandoneon::host::Answer>* answers);
  absl::Status Broadcast(const Calls& calls, Buffer* data);
  absl::Status Boundary(absl::Duration timeout, bandoneon::host::Answer* answer);
  // Has the whole host leave, whoever of its processes asks first. Answers the others alike.
  void Depart(const OpenCall& open);

  const Clock* const clock_;
  BufferPool pool_;
  HostProcesses* const processes_;
  HostExchanges* const exchanges_;
  CallThreads* const threads_;
  const DepartedFn departed_;
  Worker* worker_ = nullptr;  // const after Start, as the next
  const Registry* telemetry_ = nullptr;

  Mutex departing_;  // lets one process depart at a time; taken before mu_ and the worker's locks
  std::atomic<bool> departs_ = false;  // set under departing_
  mutable Mutex mu_;
  CondVar changed_;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  std::map<int, OfProcess> of_processes_ ABSL_GUARDED_BY(mu_);  // by local rank
  std::set<int> gone_ ABSL_GUARDED_BY(mu_);                     // local ranks
  std::optional<HostGather> gather_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int, uint64_t>, OpenCall> gathered_ ABSL_GUARDED_BY(mu_);
  // The names of values that were broadcast: two threads of a process may broadcast two of them at
  // once.
  std::set<std::string> broadcast_ ABSL_GUARDED_BY(mu_);
  uint64_t turns_given_ ABSL_GUARDED_BY(mu_) = 0;  // of OnServers
  uint64_t turns_over_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_CALLS_H_
