#ifndef BANDONEON_WORKER_HOST_HOST_SERVER_H_
#define BANDONEON_WORKER_HOST_HOST_SERVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/buffer.h"
#include "common/base/clock.h"
#include "common/base/file_descriptor.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/telemetry/registry.h"
#include "worker/host/call_threads.h"
#include "worker/host/host_address.h"
#include "worker/host/host_channel.h"
#include "worker/host/host_gather.h"
#include "worker/host/host_rounds.h"
#include "worker/host/peer_lease.h"
#include "worker/worker.h"

namespace bandoneon::control {
class Report;
}
namespace bandoneon::host {
class Answer;
class Call;
class Hello;
class Pushes;
class Retired;
}  // namespace bandoneon::host

namespace bdn {

// The daemon's side of a host: takes the host's processes, sums what they push in the order of their
// local ranks, and exchanges it through one worker, so that each key is encoded, crosses the network and
// is decoded once for all of them. What the processes call together it calls once.
//
// One thread polls the processes' sockets; calls that wait have threads of their own. Thread-safe.
//
// Locks, in the order in which they are taken: setting_; mu_, or one of the worker's; then those of a
// channel, the pool and the arena. Of the worker nothing is called under mu_ but what never changes.
class HostServer {
 public:
  struct Options {
    int processes = 1;   // of this host, that are to attach
    std::string job_id;  // who asks for another is refused
    absl::Duration attach_timeout = absl::Minutes(2);
  };

  HostServer(const Options& options, const Clock* clock);
  ~HostServer();
  HostServer(const HostServer&) = delete;
  HostServer& operator=(const HostServer&) = delete;

  // Takes processes from `listener`, may be null, and serves them through `worker`; all are borrowed until
  // Close.
  void Start(HostListener* listener, Worker* worker, const Registry* telemetry);
  // A process that is connected already.
  void Adopt(FileDescriptor socket);
  // The job cannot go on, as the worker was told; before Start, too.
  void OnFailure(const absl::Status& status);

  // Waits until all processes have left and gone (OK), or the job has failed and they know it.
  absl::Status Wait();
  // Ends everything; processes that are still there lose their daemon. Idempotent. REQUIRES: the worker's
  // waits end.
  void Close();

  // Tells everybody who waits at `listener` why there is nobody to serve him, as far as there are
  // descriptors for it.
  static void Refuse(HostListener* listener, const absl::Status& why);

 private:
  struct Process {
    explicit Process(std::shared_ptr<HostChannel> its) : channel(std::move(its)) {}
    const std::shared_ptr<HostChannel> channel;
    FileDescriptor pidfd;  // none where the kernel or its namespace has none
    // Of those who said hello; -1: any. Under mu_ until all are welcome, and the same from then on.
    int local_rank = -1;
    bool said_hello = false;
    std::string codec_spec;  // of what it pushes
    bool has_left = false;
    bool is_gone = false;
    PeerLease lease;                     // from the welcome on
    std::map<uint64_t, Buffer> answers;  // what it has not copied yet, by call
    std::set<uint64_t> calls;            // open
  };
  using ProcessRef = std::shared_ptr<Process>;

  // A declared tensor. Shared by the table and the rounds that are with the worker, which write its memory.
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
  struct OpenCall {
    ProcessRef process;
    std::shared_ptr<const bandoneon::host::Call> call;
    HostChannel::Bytes data;
    absl::Time deadline;
  };
  using Calls = std::vector<OpenCall>;  // by local rank

  // ---- The polling thread

  void Poll();
  void Accept();
  void Add(FileDescriptor socket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnReadable(const ProcessRef& process);
  absl::Status OnMessage(const ProcessRef& process, const std::string& bytes);
  absl::Status OnHello(const ProcessRef& process, const bandoneon::host::Hello& hello);
  absl::Status CheckHello(const bandoneon::host::Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WelcomeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status OnRetired(const ProcessRef& process, const bandoneon::host::Retired& retired);
  // All processes are done with these.
  void Retire(const std::vector<uint32_t>& tensors);
  absl::Status OnReport(const bandoneon::control::Report& report);
  absl::Status OnPushes(const ProcessRef& process, const bandoneon::host::Pushes& pushes);
  absl::Status OnCall(const ProcessRef& process, bandoneon::host::Call call);
  void OnGone(const ProcessRef& process, const absl::Status& why);
  void OnTime();
  // Says that the daemon is there, where it is time to; why the job is over where a process is silent.
  std::string KeepLeases();
  // Of the thread itself, since it was awake last.
  void NotePause();
  absl::Time NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake();

  // ---- Rounds

  void StartRounds(std::vector<HostRound> rounds);
  absl::StatusOr<std::shared_ptr<HostTensor>> FillRequest(const HostRound& round,
                                                          PushRequest* request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The worker does not take it, as its pushes do not fit: its processes may push the step again.
  void Refuse(const HostRound& round, const absl::Status& why);
  void EndRound(const HostRound& round, const absl::StatusOr<PushResult>& result,
                bool undone = false);

  // ---- Calls, each on a thread of its own

  void Serve(OpenCall call);
  absl::Status ServeOne(const OpenCall& open, bandoneon::host::Answer* answer, Buffer* data);
  void ServeTogether(const Calls& calls);
  absl::Status Declare(const Calls& calls, std::vector<bandoneon::host::Answer>* answers);
  // The failure; where it names a tensor that only some are done with, it says who, and what to do.
  absl::Status WithAdvice(absl::Status failure) const;
  void RetireWhatIsDeclaredAnew(std::span<const TensorDeclaration> tensors);
  absl::Status Broadcast(const Calls& calls, Buffer* data);
  absl::Status AddTensors(std::span<const TensorDeclaration> tensors,
                          std::span<const uint32_t> ids);
  absl::Status DescribePush(uint32_t tensor) const;
  // Runs `body`, which has so long, while no other call asks the servers about what they hold: tensors
  // share keys. One after the other, in the order in which they come; what reads gives way to others from
  // time to time, for what it waits for may be theirs to set.
  template <typename Body>
  absl::Status OnServers(const OpenCall& open, bool reads, const Body& body);
  absl::StatusOr<size_t> BytesOfData(const bandoneon::host::Call& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Perform(const OpenCall& open, bandoneon::host::Answer* answer, Buffer* data);
  // `values` is what call->in borrows.
  absl::Status PerformAtLink(int process, StateCall* call, std::vector<float>* values);
  absl::Status AddToLink(int process, StateCall* call, std::vector<float>* values);
  absl::StatusOr<uint64_t> ElementsOf(uint32_t tensor) const;
  absl::StatusOr<HostTensor*> Find(uint32_t tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Answer(const OpenCall& open, bandoneon::host::Answer answer, const absl::Status& status,
              Buffer data = {});
  void AnswerAll(const Calls& calls, const absl::Status& status);
  void EndGathered(const std::vector<HostGather::Ended>& ended);
  OpenCall TakeCall(const HostGather::Member& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AbortJob(const std::string& reason);
  std::string NameOf(const Process& process) const;
  std::string NameOf(uint32_t tensor) const;
  // The local ranks that are free, rising, as many as have not attached.
  std::vector<int> NotAttached() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Clock* const clock_;
  const std::shared_ptr<ShmArena> arena_;
  BufferPool pool_;
  const FileDescriptor wake_;

  HostListener* listener_ = nullptr;  // these four: const after Start
  Worker* worker_ = nullptr;
  const Registry* telemetry_ = nullptr;
  absl::Time attach_deadline_;

  // The polling thread's: nobody is accepted before, for there were no descriptors, or many strangers.
  absl::Time accepts_at_ = absl::InfinitePast();
  int refusals_ = 0;     // of strangers, since then
  LimitedLog peer_log_;  // of what strangers and processes can cause

  Mutex setting_;  // one state at a time; taken before mu_
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<ProcessRef> processes_ ABSL_GUARDED_BY(mu_);  // connected
  std::vector<ProcessRef> attached_ ABSL_GUARDED_BY(mu_);   // by local rank, once all are there
  std::map<std::pair<int, uint64_t>, OpenCall> gathered_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Codec> codec_ ABSL_GUARDED_BY(mu_);  // of what processes push; null: none
  std::optional<HostRounds> rounds_ ABSL_GUARDED_BY(mu_);
  std::optional<HostGather> gather_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, std::shared_ptr<HostTensor>> tensors_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);  // of these, by name
  uint32_t tensors_end_ ABSL_GUARDED_BY(mu_) = 0;                        // all ids so far are below
  uint64_t turns_given_ ABSL_GUARDED_BY(mu_) = 0;                        // of OnServers
  uint64_t turns_over_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  absl::Time failed_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::optional<LifeSigns> signs_ ABSL_GUARDED_BY(mu_);  // from the welcome on, while the job lasts
  bool all_left_ ABSL_GUARDED_BY(mu_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;  // no process is taken any more
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;

  std::thread poller_;
  CallThreads threads_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_HOST_HOST_SERVER_H_
