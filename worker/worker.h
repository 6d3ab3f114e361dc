#ifndef BANDONEON_WORKER_WORKER_H_
#define BANDONEON_WORKER_WORKER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/buffer.h"
#include "common/base/clock.h"
#include "common/base/executor.h"
#include "common/cluster/control_plane.h"
#include "common/telemetry/history_file.h"
#include "common/telemetry/recorder.h"
#include "common/telemetry/registry.h"
#include "common/telemetry/stage_times.h"
#include "common/telemetry/work_counts.h"
#include "common/transport/transport.h"
#include "link/link_monitor.h"
#include "worker/client.h"
#include "worker/exchanges.h"
#include "worker/pipeline/request_runner.h"
#include "worker/rows/row_exchanges.h"
#include "worker/server_requests.h"
#include "worker/tensor_table.h"

namespace bdn {

// A worker of a job, in the process that trains or in a host daemon. It joins the job, declares
// tensors, leaves or ends the job, and owns the objects that make up its exchanges and its requests
// to servers. Thread-safe.
//
// A worker that joins a job that runs declares by name: the scheduler answers what the job has
// declared under the same names from its record. The parts of the catalogue that it reads hold the
// tensors of others, too; those are declared here only once its program declares them. The
// scheduler hears what its program retires before it is taken in once it is, unless the program has
// declared that again.
//
// Locks are taken in this order: declaring_, then the tensor table's, then one of those inside
// TicketTable, RequestRunner and StageQueue. No callback and no call of the control plane or the
// transport is made under any of them but declaring_.
class Worker final : public Client {
 public:
  struct Options {
    JoinRequest join;  // role and public key are filled in
    int num_threads = 2;
    size_t max_bytes_in_flight = size_t{16} << 20;
    absl::Duration join_timeout = absl::Minutes(2);
    absl::Duration wait_timeout = absl::Minutes(30);  // for an answer that a server owes
    absl::Duration probe_interval = absl::Seconds(1);
    int connections = 0;  // to each server; 0: as many as its distance asks for
    // Optional: called once, under no lock, when the job cannot go on.
    std::function<void(const absl::Status&)> failed;
    // Optional: called under no lock, one call after the other, when presence() or the number of
    // candidates that wait has changed. No round without the workers that were lost has ended here
    // before the call has returned.
    std::function<void(const Presence&, int candidates)> presence_changed;
    // Borrowed; null: no stage times are counted.
    const StageClock* stage_clock = MachineStageClock(false);
    QualityOptions quality;
    std::string history_file;  // as HistoryFile::Open
    RecorderOptions recorder;  // by default nothing is recorded
  };

  // Joins a job and waits until all nodes have joined and all servers have answered. `clock` and
  // `telemetry`, to which the worker reports, are borrowed and outlive the worker.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const Options& options, const Clock* clock,
                                                        Registry* telemetry,
                                                        std::unique_ptr<ControlPlane> control,
                                                        std::unique_ptr<Transport> transport);
  // Ends every wait with Cancelled and, unless Leave succeeded, the job for all workers.
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  NodeId node() const { return joined_.node; }
  uint64_t run_seed() const { return joined_.config.run_seed; }
  // The numbers of its metrics, as of one moment.
  struct Counts {
    Rank rank = 0;
    int size = 0;
    Step highest_step = 0;
    size_t tensors = 0;
    uint64_t tickets_ended = 0;
    TransportStats traffic;
    RequestStats requests;
    size_t connections = 0;  // to all servers
    RecoveryStats recovery;
    uint64_t silent_seconds = 0;  // as ControlPlane::SchedulerSilence
  };
  Counts counts() const;

  // Returns the job's configuration.
  const JobConfig& config() const { return joined_.config; }
  // Returns its rank among the workers that have joined. In a job of host daemons each of those is
  // a daemon, which takes part for the processes of its machine.
  Rank place() const { return joined_.rank; }
  // Returns the servers as of the join.
  const std::vector<NodeInfo>& servers() const { return joined_.membership->servers; }

  // Its rank is that of the first process that pushes through this worker. Processes are counted
  // over the whole job, in the order of their workers' ranks.
  Standing standing() const override {
    return {.rank = first_process_,
            .joined_size = num_processes_,
            .is_candidate = is_candidate_.load(std::memory_order_acquire),
            .num_candidates = candidates_.load(std::memory_order_relaxed)};
  }
  Presence PresenceAmong(const RankGroup& group) const override;
  const std::vector<int>& processes() const override { return joined_.processes; }
  std::shared_ptr<MemoryDomain> memory() override { return HostMemory(); }
  ProgramRecords program_records() override { return {recorder_.get(), &program_clock_}; }
  uint64_t RecordedKeyOf(uint32_t tensor) override;
  absl::StatusOr<std::vector<uint32_t>> Declare(std::vector<TensorDeclaration> tensors,
                                                absl::Duration timeout) override;
  absl::Status Retire(std::span<const uint32_t> tensors) override;
  absl::StatusOr<TensorFacts> FactsOf(uint32_t tensor) const override;
  absl::StatusOr<std::vector<Rank>> ServersOf(uint32_t tensor) const override;
  absl::Status PushPullAll(std::span<PushRequest> requests,
                           std::vector<TicketId>* tickets) override;
  absl::Status WaitAll(std::span<const TicketId> tickets, absl::Duration timeout,
                       std::vector<PushResult>* results) override;
  absl::Status DescribeWait(TicketId ticket) override;
  absl::StatusOr<Tables*> tables() override { return rows_.get(); }
  absl::Status BroadcastParts(const BroadcastCall& call, absl::Duration timeout) override;
  absl::StatusOr<std::vector<Rank>> Meet(const std::string& name, absl::Duration timeout) override;
  absl::StatusOr<std::vector<Rank>> Boundary(absl::Duration timeout) override;
  absl::Status ReportValue(const ReportedValue& value) override;
  absl::Status Leave(absl::Duration timeout) override;
  absl::Status Depart(const std::string& reason) override;
  absl::Status Abort(const std::string& reason) override;
  void Close() override;
  absl::Status Perform(StateCall* call, absl::Duration timeout) override;

 private:
  Worker(const Options& options, const Clock* clock, std::unique_ptr<ControlPlane> control,
         std::unique_ptr<Transport> transport);
  absl::Status Start(Registry* telemetry);
  // The parts of Start, in their order. Joins, and opens what the worker writes.
  absl::Status Join();
  void MakeParts();
  // Has the scheduler and the process's metrics read what this worker counts.
  void BeginReports(Registry* telemetry);
  void OnMembership(std::shared_ptr<const Membership> membership);
  // Waits until this worker knows the membership of this epoch.
  absl::Status AwaitEpoch(Epoch epoch, absl::Time deadline);
  // Takes part from the epoch on in which this worker was taken in: connects to the servers, and
  // lets all keys stand where they stand there.
  absl::Status Enter(const Met& met, absl::Time deadline);
  absl::Status BeginWhereServersStand(std::span<const Key> keys, absl::Time deadline);
  // Returns the ranks of the processes of all workers but these, rising.
  std::vector<Rank> ProcessesBut(std::span<const Rank> vacant) const;
  // Returns the rank of the worker through which a process pushes. REQUIRES: 0 <= process <
  // num_processes_.
  Rank WorkerOf(Rank process) const;

  absl::Status CheckTakesPart() const;
  // Tells the scheduler with which tensors the program was done while this worker was a candidate.
  void RetireAsTakenIn();
  // Checks that this worker is of the tensor's ranks, and that the job has them.
  absl::Status CheckRanks(const TensorDeclaration& tensor) const;
  // InvalidArgument: a table's bound does not fit the number of its buckets.
  absl::Status CheckBound(const TensorDeclaration& tensor) const;
  // Takes new parts of the catalogue up, and returns the tensors' ids. Adds the keys that others
  // may have exchanged before this worker was taken in to `earlier`.
  absl::StatusOr<std::vector<uint32_t>> TakeDeclared(std::span<const TensorDeclaration> tensors,
                                                     const DeclareResult& declared,
                                                     std::vector<Key>* earlier);
  // Tells the recorder what the keys of a new part of the catalogue are called.
  void NameKeys(const CatalogueDelta& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_.mutex());
  // Writes the recording, where a setting says so.
  void NoteTrouble(const std::string& why);
  // Lets the keys of a new part of the catalogue survive their servers. To be called before their
  // first request.
  void LetSurvive(const CatalogueDelta& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tensors_.mutex());
  // Logs, once in a job, that codecs are not used for a noticeable part of the tensors.
  void SayUncompressed(const DeclareResult& declared) ABSL_EXCLUSIVE_LOCKS_REQUIRED(declaring_);

  const Options options_;
  const Clock* const clock_;
  const std::unique_ptr<ControlPlane> control_;
  const std::unique_ptr<Transport> transport_;
  const std::unique_ptr<StageTimes> stages_;  // null: no stage times are counted
  ProgramClock program_clock_;
  std::unique_ptr<Recorder> recorder_;    // null: nothing is recorded; made in Start
  std::unique_ptr<HistoryFile> history_;  // null: none is written; made in Start
  QualityWatch quality_;
  BufferPool pool_;
  JoinResult joined_;       // const after Start
  Rank first_process_ = 0;  // const after Start
  int num_processes_ = 0;   // of all workers that have joined; const after Start
  // Relaxed: the numbers publish nothing else.
  std::atomic<Presence> presence_ = Presence();

  // Release: the facts of a worker that was taken in; Acquire sees them.
  std::atomic<bool> is_candidate_ = false;
  std::atomic<int> candidates_ = 0;  // relaxed, as presence_

  // Nothing else is called under it.
  mutable Mutex membership_mu_;
  CondVar membership_changed_;
  // The latest that the requests know; of a candidate the latest that was told.
  std::shared_ptr<const Membership> membership_ ABSL_GUARDED_BY(membership_mu_);
  bool is_connected_ ABSL_GUARDED_BY(membership_mu_) = true;  // not before a candidate is taken in
  std::atomic<Epoch> entered_in_ = 0;  // relaxed; 0: it was there when the job began
  // The tensors that were retired while this worker was a candidate.
  std::vector<uint32_t> retired_before_ ABSL_GUARDED_BY(tensors_.mutex());

  Mutex declaring_;  // lets one declaration go on at a time, in the callers' order
  bool said_uncompressed_ ABSL_GUARDED_BY(declaring_) = false;
  mutable TensorTable tensors_;
  // Made in Start. The destructor ends them in an order of its own.
  std::unique_ptr<RequestRunner> requests_;
  std::unique_ptr<ServerRequests> server_requests_;
  std::unique_ptr<Exchanges> exchanges_;
  std::unique_ptr<RowExchanges> rows_;
  std::unique_ptr<Executor> executor_;
  // Declared last, so destroyed first: they read the members above.
  std::vector<std::unique_ptr<Registry::Source>> metrics_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_WORKER_H_
