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
  FileDescriptor pidfd;  // none where the kernel or its namespace has none
  // Of those that said hello; -1: any. Guarded by the HostProcesses until all are welcome, and
  // constant from then on.
  int local_rank = -1;

  // Guarded by the HostProcesses.
  bool said_hello = false;
  std::string codec_spec;  // of what it pushes
  bool has_left = false;
  bool is_gone = false;
  PeerLease lease;  // from the welcome on
};
using HostProcessRef = std::shared_ptr<HostProcess>;

// The processes of a host, as their daemon knows them: it accepts them, welcomes them once all have
// said hello, tells them that it is alive, and notices which of them has ended or is silent.
// Thread-safe. What is under "the polling thread" is called by that thread alone.
class HostProcesses {
 public:
  struct Options {
    int processes = 1;   // of this host, that are to attach
    std::string job_id;  // a process that names another is refused
    absl::Duration attach_timeout = absl::Minutes(2);
  };

  // All are borrowed. `arena` is that of all channels.
  HostProcesses(const Options& options, const Clock* clock, std::shared_ptr<ShmArena> arena);
  HostProcesses(const HostProcesses&) = delete;
  HostProcesses& operator=(const HostProcesses&) = delete;

  // Serves processes of `listener`, which may be null, from now on, in the name of `worker`; both
  // are borrowed.
  void Start(HostListener* listener, const Worker* worker);
  // Adds a process that is connected already.
  void Adopt(FileDescriptor socket);
  // Tells the processes that the job has failed. False: it had failed before.
  bool Fail(const absl::Status& status);
  // Notes that all processes have left the job.
  void SetAllLeft();
  // Waits until all processes have left and gone (OK), or the job has failed and they know it.
  absl::Status Wait();
  // Ends Wait, and the polling thread's next Poll.
  void Close();
  // Drops the processes, whose sockets end. REQUIRES: the polling thread has ended.
  void Clear();

  // Tells everybody who waits at `listener` why there is nobody to serve him, as far as there are
  // descriptors for it.
  static void Refuse(HostListener* listener, const absl::Status& why);

  int size() const { return options_.processes; }
  // Returns the processes by local rank: nothing until all are welcome, and after Clear.
  std::vector<HostProcessRef> attached() const;
  // Returns the codec of what the processes push, null where there is none. It is constant once all
  // are welcome.
  std::shared_ptr<const Codec> codec() const;
  // Returns "worker 3 (process 4711, local rank 1)".
  std::string NameOf(const HostProcess& process) const;
  bool IsGone(const HostProcess& process) const;
  // Tells whether the process was welcomed, gone or not: only then has it a local rank.
  bool IsAttached(const HostProcess& process) const;
  // Sends a message to a process, on any thread: what its socket takes no more now, the polling
  // thread sends.
  void Send(const HostProcess& process, const bandoneon::host::ToProcess& message);

  // ---- The polling thread

  struct Ready {
    HostProcessRef process;
    bool is_readable = false;
    absl::Status ended;  // not OK: it is to be taken for gone, once what it said has been read
  };
  // Waits until a process has something to say, somebody connects, or it is `next`. False: it is
  // closed.
  bool Poll(absl::Time next, std::vector<Ready>* ready);
  // Takes a process that Poll saw connect, unless the job is about to end.
  void Accept();
  // Answers a hello, and the last of them with a welcome to all.
  absl::Status OnHello(const HostProcessRef& process, const bandoneon::host::Hello& hello);
  // Notes that something of the process has come.
  void Heard(const HostProcessRef& process);
  // Notes that a process is gone; returns why the job is over for that, or "".
  std::string OnGone(const HostProcessRef& process, const absl::Status& why);
  // Does what is due; returns why the job is over where a process did not attach in time or is
  // silent, or "".
  std::string OnTime();
  // Logs what strangers and processes can cause, not too often.
  LimitedLog& peer_log() { return peer_log_; }

 private:
  void Add(FileDescriptor socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckHello(const bandoneon::host::Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WelcomeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Says that the daemon is there, where it is time to; why the job is over where a process is
  // silent.
  std::string KeepLeases();
  // Why the job is over where the time to attach is.
  std::string CheckAttached();
  // Gives the processes the time again in which the polling thread was not awake.
  void NotePause();
  absl::Time NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The local ranks that are free, rising, as many as have not attached.
  std::vector<int> NotAttached() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake();

  const Options options_;
  const Clock* const clock_;
  const std::shared_ptr<ShmArena> arena_;
  const FileDescriptor wake_;

  HostListener* listener_ = nullptr;  // these two: const after Start
  const Worker* worker_ = nullptr;

  // The polling thread's: nobody is accepted before, for there were no descriptors, or many
  // strangers.
  absl::Time accepts_at_ = absl::InfinitePast();
  int refusals_ = 0;  // of strangers, since then
  bool somebody_connects_ = false;
  LimitedLog peer_log_;

  mutable Mutex mu_;
  CondVar changed_;
  absl::Time attach_deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::vector<HostProcessRef> connected_ ABSL_GUARDED_BY(mu_);
  std::vector<HostProcessRef> attached_ ABSL_GUARDED_BY(mu_);  // by local rank, once all are there
  std::shared_ptr<const Codec> codec_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  absl::Time failed_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::optional<LifeSigns> signs_ ABSL_GUARDED_BY(mu_);  // from the welcome on, while the job lasts
  bool all_left_ ABSL_GUARDED_BY(mu_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;  // no process is taken any more
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_PROCESSES_H_
