#ifndef BANDONEON_WORKER_HOST_HOST_SERVER_H_
#define BANDONEON_WORKER_HOST_HOST_SERVER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/telemetry/registry.h"
#include "worker/host/call_threads.h"
#include "worker/host/host_address.h"
#include "worker/host/host_calls.h"
#include "worker/host/host_exchanges.h"
#include "worker/host/host_processes.h"
#include "worker/worker.h"

namespace bandoneon::control {
class Report;
}

namespace bdn {

// The host daemon without its main(): it accepts the host's processes, sums their pushes in the
// order of local ranks, and exchanges the sum through one worker, so that each key is encoded, sent
// and decoded once for all of them. Calls that the processes make together it makes once.
// Thread-safe.
//
// One thread polls the processes' sockets, and passes their messages to the parts: HostProcesses
// (attaching, leases, ends), HostExchanges (tensors, rounds) and HostCalls (calls, where each that
// blocks has a thread of its own). Each part has a lock of its own, and calls no other part under
// it.
class HostServer {
 public:
  using Options = HostProcesses::Options;

  HostServer(const Options& options, const Clock* clock);
  ~HostServer();
  HostServer(const HostServer&) = delete;
  HostServer& operator=(const HostServer&) = delete;

  // Accepts processes from `listener`, which may be null, and serves them through `worker`. All
  // pointers are borrowed until Close.
  void Start(HostListener* listener, Worker* worker, const Registry* telemetry);
  // Adds a process that is connected already.
  void Adopt(FileDescriptor socket) { processes_.Adopt(std::move(socket)); }
  // Notes that the worker's job has failed. May be called before Start.
  void OnFailure(const absl::Status& status);
  // Notes that the worker's presence(), or how many candidates wait, has changed. May be called
  // before Start.
  void OnPresence(const Presence& presence, int candidates) {
    processes_.TellPresence(presence, candidates);
  }

  // Waits until all processes have left and gone (OK), or the job has failed and they were told.
  // OK, too, where a process has had this host leave a job that goes on.
  absl::Status Wait();
  // Ends everything; processes that are still attached lose their daemon. Idempotent. REQUIRES: the
  // worker's waits end.
  void Close();

  // Sends `why` to the processes that wait at `listener` for a daemon: see HostProcesses.
  static void Refuse(HostListener* listener, const absl::Status& why) {
    HostProcesses::Refuse(listener, why);
  }

 private:
  // ---- The polling thread

  void Poll();
  void OnReadable(const HostProcessRef& process);
  absl::Status OnMessage(const HostProcessRef& process, const std::string& bytes);
  absl::Status OnReport(const bandoneon::control::Report& report);
  void OnGone(const HostProcessRef& process, const absl::Status& why);
  void OnTime();

  // Ends the job for all workers, on a thread of its own; does nothing if `reason` is empty.
  void AbortJob(const std::string& reason);
  // Leaves the job to the others, who go on without this host, if they may, or ends it for all
  // workers; on a thread of its own. Does nothing if `reason` is empty.
  void GiveUpHost(const std::string& reason);
  // Has this host's processes hear that the job goes on without them.
  void OnDeparted(const std::string& reason);

  const Clock* const clock_;
  const std::shared_ptr<ShmArena> arena_;
  Worker* worker_ = nullptr;  // const after Start
  CallThreads threads_;       // joined in Close, before the parts that they use are destroyed
  HostProcesses processes_;
  HostExchanges exchanges_;
  HostCalls calls_;
  std::thread poller_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_SERVER_H_
