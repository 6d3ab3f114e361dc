#include "scheduler/local_control_plane.h"

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/base/thread.h"

namespace bdn {
namespace {

// The interval at which waits log what they wait for.
constexpr absl::Duration kReportInterval = absl::Seconds(30);

class LocalControlPlane final : public ControlPlane {
 public:
  LocalControlPlane(JobHost* host, Credentials credentials)
      : host_(host), credentials_(std::move(credentials)) {}
  ~LocalControlPlane() override { Close(); }

  absl::StatusOr<JoinResult> Join(const JoinRequest& request, absl::Duration timeout) override {
    bool admitted = false;
    host_->Read([&](const Job& job, absl::Time) {
      admitted = job.options().credentials.Admits(credentials_.token());
    });
    if (!admitted) return PermissionDenied("wrong token from %s", request.host);
    const Job::Completion done = Wait([&](JobHost::Done callback) {
      return host_->Join(request, kControlVersion, timeout, std::move(callback));
    });
    BDN_RETURN_IF_ERROR(done.status);
    MutexLock lock(&mu_);
    node_ = done.join.node;
    role_ = request.role;
    rank_ = done.join.rank;
    return done.join;
  }

  void Watch(Events events) override {
    MutexLock lock(&mu_);
    if (closed_ || event_thread_.joinable()) return;
    // An observer runs on JobHost's thread, for all nodes: so it only wakes this node's own thread,
    // which delivers the events.
    observer_ = host_->AddObserver(
        role_ == Role::kWorker ? JobHost::Observed::kWorkers : JobHost::Observed::kServers,
        [signal = signal_] { signal->Raise(); });
    event_thread_ = StartThread("bdn-events", [this, events = std::move(events), node = node_] {
      DeliverEvents(events, node);
    });
  }

  absl::StatusOr<DeclareResult> Declare(const std::vector<TensorDeclaration>& tensors,
                                        absl::Duration timeout) override {
    const absl::Time deadline = host_->clock()->Now() + timeout;
    const auto say = [&](DeclarationPart part) -> absl::StatusOr<DeclarationAnswer> {
      const Job::Completion done = Wait([&](JobHost::Done callback) {
        return host_->Declare(node(), std::move(part), deadline - host_->clock()->Now(),
                              std::move(callback));
      });
      BDN_RETURN_IF_ERROR(done.status);
      return done.declared;
    };
    BDN_ASSIGN_OR_RETURN(const DeclarationAnswer answer, SendDeclaration(tensors, rank(), say));
    MutexLock lock(&mu_);
    DeclareResult result;
    while (declared_ < answer.version.catalogue) {
      result.push_back(host_->DeltaFor(node_, declared_ + 1, answer.version.catalogue));
      declared_ = result.back()->version.catalogue;
    }
    return result;
  }

  void Retire(const std::vector<uint32_t>& tensors) override {
    // An error means that the job is over, and then nothing is kept.
    (void)host_->Retire(node(), tensors);
  }

  absl::Status AcknowledgePlacement(PlacementVersion version) override {
    return host_->AcknowledgePlacement(node(), version);
  }

  absl::StatusOr<std::vector<Rank>> Meet(const std::string& name, absl::Duration timeout) override {
    BDN_ASSIGN_OR_RETURN(Met met, Arrive(name, timeout));
    return std::move(met.vacant);
  }

  absl::StatusOr<Met> MeetAtBoundary(absl::Duration timeout) override {
    return Arrive(kBoundary, timeout);
  }

  void ReportProgress(const NodeProgress& progress) override {
    NodeProgress all = progress;
    std::function<StageCounts()> read;
    std::function<std::vector<QualityGroup>()> read_quality;
    {
      MutexLock lock(&mu_);
      read = read_stages_;
      read_quality = read_quality_;
    }
    // Called without the lock: the readers take locks of their own.
    if (read) all.stages = read();
    if (read_quality) (void)host_->ReportQuality(node(), read_quality());
    // An error means that the job is over, and then no heartbeat is needed.
    (void)host_->Heartbeat(node(), all);
  }

  void ReportStages(std::function<StageCounts()> read) override {
    MutexLock lock(&mu_);
    read_stages_ = std::move(read);
  }

  // Nodes of one process share its threads and its machine: none slows the others alone.
  void ReportWork(std::function<WorkCounts()>) override {}

  void ReportQuality(std::function<std::vector<QualityGroup>()> read) override {
    MutexLock lock(&mu_);
    read_quality_ = std::move(read);
  }

  // Local nodes send no heartbeats, which would carry them.
  void ReportWaits(std::function<std::vector<NodeWait>()>) override {}
  void ReportTables(std::function<std::vector<TableCounts>()>) override {}

  absl::Status ReportValue(const ReportedValue& value) override {
    BDN_RETURN_IF_ERROR(CheckReportName(value.name));
    return host_->Report(node(), {value});
  }

  absl::Status Leave(const absl::Status& reason, absl::Duration timeout) override {
    const absl::Status status = Wait([&](JobHost::Done callback) {
                                  return host_->Leave(node(), reason, timeout, std::move(callback));
                                }).status;
    MutexLock lock(&mu_);
    left_ = left_ || status.ok();
    return status;
  }

  absl::Status TryToLeave(const absl::Status& reason, absl::Duration) override {
    const absl::Status status = Wait([&](JobHost::Done callback) {
                                  return host_->TryToLeave(node(), reason, std::move(callback));
                                }).status;
    const bool is_out = status.ok() || IsEvicted(status);
    MutexLock lock(&mu_);
    left_ = left_ || is_out;
    return is_out ? absl::OkStatus() : status;
  }

  void Close() override {
    std::set<CallId> open;
    uint64_t observer = 0;
    bool lost = false;
    {
      MutexLock lock(&mu_);
      lost = !closed_ && !left_ && node_ != 0;
      closed_ = true;
      open = open_;
      observer = std::exchange(observer_, 0);
    }
    signal_->Close();
    for (const CallId call_id : open) host_->Cancel(call_id);
    if (observer != 0) host_->RemoveObserver(observer);
    if (lost) host_->Lost(node(), "closed its connection without leaving");
    // Two threads may close at once; one of them gets the thread to join.
    std::thread event_thread;
    {
      MutexLock lock(&mu_);
      event_thread = std::move(event_thread_);
    }
    if (event_thread.joinable()) event_thread.join();
    WaitForCalls();
  }

 private:
  // A flag that JobHost raises and the thread of events waits for. Outlives both, because they
  // share it.
  class Signal {
   public:
    void Raise() {
      MutexLock lock(&mu_);
      raised_ = true;
      changed_.SignalAll();
    }
    void Close() {
      MutexLock lock(&mu_);
      closed_ = true;
      changed_.SignalAll();
    }
    // Waits until raised; returns false once closed.
    bool Wait() {
      MutexLock lock(&mu_);
      while (!raised_ && !closed_) changed_.Wait(&mu_);
      raised_ = false;
      return !closed_;
    }

   private:
    Mutex mu_;
    CondVar changed_;
    bool raised_ ABSL_GUARDED_BY(mu_) = false;
    bool closed_ ABSL_GUARDED_BY(mu_) = false;
  };

  // The answer to one call, shared with its callback, which may run after the caller has given up.
  struct Answer {
    Mutex mu;
    CondVar arrived;
    std::optional<Job::Completion> completion ABSL_GUARDED_BY(mu);
  };

  Rank rank() const {
    MutexLock lock(&mu_);
    return rank_;
  }
  NodeId node() const {
    MutexLock lock(&mu_);
    return node_;
  }

  absl::StatusOr<Met> Arrive(const std::string& name, absl::Duration timeout) {
    Job::Completion done = Wait([&](JobHost::Done callback) {
      return host_->ArriveAtBarrier(node(), {.barrier = name}, timeout, std::move(callback));
    });
    BDN_RETURN_IF_ERROR(done.status);
    return std::move(done.met);
  }

  // Starts a call, and blocks until its answer, which Close brings as Cancelled.
  template <typename Start>
  Job::Completion Wait(Start start) {
    const auto answer = std::make_shared<Answer>();
    const CallId call_id = start([answer](const Job::Completion& completion) {
      MutexLock lock(&answer->mu);
      answer->completion = completion;
      answer->arrived.SignalAll();
    });
    if (call_id == 0) return {0, Cancelled("the scheduler is closed"), {}, {}, {}};
    bool closed;
    {
      MutexLock lock(&mu_);
      closed = closed_;
      open_.insert(call_id);
    }
    // Close may have read the list of calls before this one was in it.
    if (closed) host_->Cancel(call_id);
    Job::Completion completion;
    {
      absl::Time report = host_->clock()->Now() + kReportInterval;
      while (!AwaitAnswer(answer.get(), report)) {
        Report(call_id);
        report += kReportInterval;
      }
      MutexLock lock(&answer->mu);
      completion = *answer->completion;
    }
    MutexLock lock(&mu_);
    open_.erase(call_id);
    if (open_.empty()) no_calls_.SignalAll();
    return completion;
  }

  // Waits for the answer; returns false where it has not come by then.
  bool AwaitAnswer(Answer* answer, absl::Time until) const {
    MutexLock lock(&answer->mu);
    while (!answer->completion.has_value()) {
      if (host_->clock()->Now() >= until) return false;
      host_->clock()->WaitUntil(&answer->arrived, &answer->mu, until);
    }
    return true;
  }

  void Report(CallId call_id) const {
    std::string text;
    host_->Read([&](const Job& job, absl::Time) { text = job.WaitedForBy(call_id); });
    LogWarning("still waiting: %s", text);
  }

  void WaitForCalls() {
    MutexLock lock(&mu_);
    while (!open_.empty()) no_calls_.Wait(&mu_);
  }

  void DeliverEvents(const Events& events, NodeId node) {
    Job::View told;
    while (signal_->Wait()) {
      const Job::View view = host_->ViewOf(node);
      if (view.membership != told.membership && view.membership != nullptr &&
          events.on_membership) {
        events.on_membership(view.membership);
      }
      // The view tells the latest version only, so all versions up to it are fetched, in order.
      for (uint32_t version = told.placed.catalogue; version < view.placed.catalogue;) {
        const SharedDelta delta = host_->DeltaOf(++version);
        if (events.on_catalogue) events.on_catalogue(delta);
      }
      if (view.leaving > told.leaving && events.on_leaving) {
        std::vector<Rank> ranks = host_->LeavingRanks(told.leaving);
        ranks.resize(view.leaving - told.leaving);  // more may have left since the view was taken
        events.on_leaving(std::move(ranks));
      }
      if (view.candidates != told.candidates && events.on_candidates) {
        events.on_candidates(view.candidates);
      }
      if (told.failure.ok() && !view.failure.ok() && events.on_failure) {
        events.on_failure(view.failure);
      }
      if (!told.done && view.done && events.on_finished) events.on_finished();
      told = view;
    }
  }

  JobHost* const host_;
  const Credentials credentials_;
  const std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();

  mutable Mutex mu_;
  CondVar no_calls_;
  NodeId node_ ABSL_GUARDED_BY(mu_) = 0;
  Role role_ ABSL_GUARDED_BY(mu_) = Role::kWorker;
  Rank rank_ ABSL_GUARDED_BY(mu_) = 0;
  // The version of the catalogue that Declare has returned.
  uint32_t declared_ ABSL_GUARDED_BY(mu_) = 0;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::set<CallId> open_ ABSL_GUARDED_BY(mu_);
  uint64_t observer_ ABSL_GUARDED_BY(mu_) = 0;
  std::function<StageCounts()> read_stages_ ABSL_GUARDED_BY(mu_);
  std::function<std::vector<QualityGroup>()> read_quality_ ABSL_GUARDED_BY(mu_);
  std::thread event_thread_ ABSL_GUARDED_BY(mu_);
};

JobOptions OptionsOf(const JobConfig& config) {
  JobOptions options;
  options.config = config;
  return options;
}

JobOptions WithoutLeases(JobOptions options) {
  options.has_leases = false;
  return options;
}

}  // namespace

LocalScheduler::LocalScheduler(const JobConfig& config, const Clock* clock)
    : LocalScheduler(OptionsOf(config), clock) {}
LocalScheduler::LocalScheduler(JobOptions options, const Clock* clock)
    : host_(WithoutLeases(std::move(options)), clock) {}

std::unique_ptr<ControlPlane> LocalScheduler::Connect(Credentials credentials) {
  return std::make_unique<LocalControlPlane>(&host_, std::move(credentials));
}

}  // namespace bdn
