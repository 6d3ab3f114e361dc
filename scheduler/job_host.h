#ifndef BANDONEON_SCHEDULER_JOB_HOST_H_
#define BANDONEON_SCHEDULER_JOB_HOST_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/pause_watch.h"
#include "scheduler/job.h"

namespace bdn {

// A job with a clock and a thread: the shell that gRPC and a local cluster share. Thread-safe. All
// callbacks run on JobHost's thread, one at a time, without a lock, never inside the call that
// registered them. The thread sleeps until the next deadline or event.
class JobHost {
 public:
  using Done = std::function<void(const Job::Completion&)>;

  // The log of a job, and the events of the scheduler before this one; empty: there was none.
  struct Logged {
    JobLog* log = nullptr;  // borrowed; null: the job is not logged
    std::vector<JobEvent> events = {};
  };

  // Borrows `clock`. REQUIRES: CheckJobOptions(options).ok().
  JobHost(JobOptions options, const Clock* clock) : JobHost(std::move(options), clock, Logged()) {}
  JobHost(JobOptions options, const Clock* clock, Logged logged);
  // As Close.
  ~JobHost();
  JobHost(const JobHost&) = delete;
  JobHost& operator=(const JobHost&) = delete;

  const Clock* clock() const { return clock_; }

  // The calls of Job. `done` runs exactly once, at the latest in Close. After Close it never runs,
  // and the call_id is 0.
  CallId Join(const JoinRequest& request, uint32_t version, absl::Duration timeout, Done done);
  CallId Declare(NodeId node, DeclarationPart part, absl::Duration timeout, Done done);
  CallId ArriveAtBarrier(NodeId node, const Job::Arrival& arrival, absl::Duration timeout,
                         Done done);
  CallId Leave(NodeId node, const absl::Status& reason, absl::Duration timeout, Done done);
  CallId TryToLeave(NodeId node, const absl::Status& reason, Done done);
  void Cancel(CallId call_id);

  absl::Status AcknowledgePlacement(NodeId node, PlacementVersion version);
  absl::Status Heartbeat(NodeId node, const NodeProgress& progress);
  absl::Status ReportQuality(NodeId node, const std::vector<QualityGroup>& groups);
  absl::Status ReportWaits(NodeId node, const std::vector<NodeWait>& waits);
  absl::Status Retire(NodeId node, const std::vector<uint32_t>& tensors);
  absl::Status Report(NodeId node, const std::vector<ReportedValue>& values);
  void ConnectionBroke(NodeId node);
  void Lost(NodeId node, const std::string& how);
  void Stop(const std::string& why);

  // The changes that an observer wants to know of.
  enum class Observed { kWorkers, kServers, kJob };
  // Adds an observer, which runs once soon, and then after every change of the view of such nodes,
  // or of anything of the job. It may run once more while it is removed, or just after.
  uint64_t AddObserver(Observed observed, std::function<void()> observer);
  void RemoveObserver(uint64_t id);
  Job::View ViewOf(NodeId node) const;
  // Returns the additions of this version of the catalogue; null where there is no such version
  // yet.
  SharedDelta DeltaOf(uint32_t version) const;
  // Returns the first of these versions of the catalogue, `first` to `last`, that adds tensors
  // which this worker exchanges; where none does, version `last` without its content. Null where
  // there is no version `last` yet.
  SharedDelta DeltaFor(NodeId worker, uint32_t first, uint32_t last) const;
  // Returns the ranks of workers that are leaving, from index `first` on.
  std::vector<Rank> LeavingRanks(size_t first) const;

  // Calls `reader` with the job, under the lock: it must be quick, and must call nothing of this
  // JobHost.
  void Read(const std::function<void(const Job&, absl::Time now)>& reader) const;

  // From now on a call that is given up changes nothing of a job that is logged: it is this
  // scheduler that ends the calls, and not their nodes.
  void LeaveToAnother();
  // Fails waiting calls with Cancelled, or where the job is logged with Unavailable, because
  // another scheduler will answer them; and stops the thread after its last callback. Idempotent.
  void Close();

 private:
  template <typename Start>
  CallId Call(Done done, Start start);
  void Run();
  // Returns the time. If the process was held up, the job is told first, so that leases are
  // lengthened before they are checked.
  absl::Time Awake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits until TakeWork has something to return, or Close.
  void WaitForWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasNews(Observed observed) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::function<void()>> TakeWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  using Observer = std::shared_ptr<const std::function<void()>>;
  using Observers = std::map<uint64_t, Observer>;

  const Clock* const clock_;

  mutable Mutex mu_;
  CondVar changed_;
  const bool is_logged_;
  Job job_ ABSL_GUARDED_BY(mu_);
  PauseWatch pauses_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool is_left_to_another_ ABSL_GUARDED_BY(mu_) = false;
  std::map<CallId, Done> waiting_ ABSL_GUARDED_BY(mu_);
  std::map<Observed, Observers> observers_ ABSL_GUARDED_BY(mu_);
  // Those that have yet to run for the first time.
  std::vector<Observer> new_observers_ ABSL_GUARDED_BY(mu_);
  uint64_t next_observer_ ABSL_GUARDED_BY(mu_) = 1;
  // The revision of which observers were told.
  Job::Revision seen_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_SCHEDULER_JOB_HOST_H_
