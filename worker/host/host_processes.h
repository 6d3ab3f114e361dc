#ifndef BANDONEON_WORKER_HOST_HOST_PROCESSES_H_
#define BANDONEON_WORKER_HOST_HOST_PROCESSES_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "worker/host/host_address.h"
#include "worker/host/host_channel.h"
#include "worker/host/peer_lease.h"
#include "worker/worker.h"

namespace bandoneon::host {
class Hello;
class ToProcess;
}  // namespace bandoneon::host

namespace bdn {

// A process that is connected to its host's daemon.
struct HostProcess {
  explicit HostProcess(std::shared_ptr<HostChannel> its) : channel(std::move(its)) {}

  const std::shared_ptr<HostChannel> channel;
  FileDescriptor pidfd;  // closed if the kernel or the process's namespace has none
  // Its local rank; -1: any. Set by its hello. Guarded by the HostProcesses until all processes are
  // welcome, and constant from then on.
  int local_rank = -1;

  // Guarded by the HostProcesses.
  bool said_hello = false;
  std::string codec_spec;  // of the codec of its pushes
  bool has_left = false;
  bool is_gone = false;
  PeerLease lease;  // begins with the welcome
};
using HostProcessRef = std::shared_ptr<HostProcess>;

// The table of a host's processes in their daemon. It accepts them, welcomes them once all have
// said hello, sends them signs of life, and notices when one has ended or is silent. Thread-safe,
// except that the functions under "The polling thread" are called by that thread alone.
class HostProcesses {
 public:
  struct Options {
    int processes = 1;   // of this host, expected to attach
    std::string job_id;  // a process that names another job is refused
    absl::Duration attach_timeout = absl::Minutes(2);
  };

  // `clock` is borrowed. `arena` is that of all channels.
  HostProcesses(const Options& options, const Clock* clock, std::shared_ptr<ShmArena> arena);
  HostProcesses(const HostProcesses&) = delete;
  HostProcesses& operator=(const HostProcesses&) = delete;

  // Serves processes of `listener`, which may be null, for `worker` from now on; both are borrowed.
  void Start(HostListener* listener, const Worker* worker);
  // Adds a process that is connected already.
  void Adopt(FileDescriptor socket);
  // Tells the processes that the job has failed. Returns false if it had failed before.
  bool Fail(const absl::Status& status);
  // Tells the processes that were welcomed who is present by now, and how many candidates wait;
  // others hear it in their welcome. Calls must follow one another, so that the last one is the
  // last that processes hear.
  void TellPresence(const Presence& presence, int candidates);
  // Notes that all processes have left the job.
  void SetAllLeft();
  // Waits until all processes have left and gone (OK), or the job has failed and they were told.
  absl::Status Wait();
  // Ends Wait, and the polling thread's next Poll.
  void Close();
  // Drops the processes, whose sockets end. REQUIRES: the polling thread has ended.
  void Clear();

  // Sends `why` to the processes that wait at `listener` for a daemon, up to a thousand of them and
  // as far as there are descriptors.
  static void Refuse(HostListener* listener, const absl::Status& why);

  int size() const { return options_.processes; }
  // Returns the processes by local rank; empty until all are welcome, and after Clear.
  std::vector<HostProcessRef> attached() const;
  // Returns the codec of the processes' pushes, or null if they are not encoded. It is constant
  // once all are welcome.
  std::shared_ptr<const Codec> codec() const;
  // Returns "worker 3 (process 4711, local rank 1)".
  std::string NameOf(const HostProcess& process) const;
  bool IsGone(const HostProcess& process) const;
  // Returns whether the process was welcomed, even if it is gone since: only then does it have a
  // local rank.
  bool IsAttached(const HostProcess& process) const;
  // Sends a message to a process, from any thread. The polling thread sends the part that its
  // socket does not take now.
  void Send(const HostProcess& process, const bandoneon::host::ToProcess& message);

  // ---- The polling thread

  // A process with work for the polling thread.
  struct Ready {
    HostProcessRef process;
    bool is_readable = false;
    // Not OK: the process counts as gone, once its last messages have been read.
    absl::Status ended;
  };
  // Waits until a process has sent something, another connects, or the time is `next`. Returns
  // false after Close.
  bool Poll(absl::Time next, std::vector<Ready>* ready);
  // Accepts a process that Poll saw connect, unless the job is about to end.
  void Accept();
  // Answers a hello; after the last one, welcomes all processes.
  absl::Status OnHello(const HostProcessRef& process, const bandoneon::host::Hello& hello);
  // Notes that a message of the process has come.
  void Heard(const HostProcessRef& process);
  // Notes that a process is gone. Returns the reason if the job is over because of that, else "".
  std::string OnGone(const HostProcessRef& process, const absl::Status& why);
  // Does the work that is due. Returns the reason if the job is over because a process did not
  // attach in time or is silent, else "".
  std::string OnTime();
  // Returns the log for events that strangers and processes can cause, which is limited in rate.
  LimitedLog& peer_log() { return peer_log_; }

 private:
  void Add(FileDescriptor socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckHello(const bandoneon::host::Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WelcomeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends signs of life that are due. Returns the reason if the job is over because a process is
  // silent, else "".
  std::string KeepLeases();
  // Returns the reason if the job is over because the time to attach is, else "".
  std::string CheckAttached();
  // Extends the processes' leases by the time in which the polling thread was held up.
  void NotePause();
  absl::Time NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the free local ranks, rising, as many as there are processes that have not attached.
  std::vector<int> NotAttached() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake();

  const Options options_;
  const Clock* const clock_;
  const std::shared_ptr<ShmArena> arena_;
  const FileDescriptor wake_;

  HostListener* listener_ = nullptr;  // const after Start, as the next
  const Worker* worker_ = nullptr;

  // Used by the polling thread alone. No process is accepted before this time, because descriptors
  // were out or many strangers had connected.
  absl::Time accepts_at_ = absl::InfinitePast();
  int refusals_ = 0;  // of strangers, since the last such rest
  bool somebody_connects_ = false;
  LimitedLog peer_log_;

  mutable Mutex mu_;
  CondVar changed_;
  absl::Time attach_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::vector<HostProcessRef> connected_ ABSL_GUARDED_BY(mu_);
  // By local rank; empty until all have attached.
  std::vector<HostProcessRef> attached_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Codec> codec_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  absl::Time failed_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::optional<LifeSigns> signs_ ABSL_GUARDED_BY(mu_);  // set by the welcome
  bool all_left_ ABSL_GUARDED_BY(mu_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;  // no process is accepted any more
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_PROCESSES_H_
