#include "scheduler/job_host.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/base/thread.h"

namespace bdn {
namespace {

// The time by which the first leases of a job that goes on are longer.
constexpr absl::Duration kReturnGrace = absl::Seconds(10);

// Makes the job's data secret where none is given.
JobOptions WithSecret(JobOptions options) {
  if (options.data_secret.empty()) options.data_secret = RandomSecret();
  return options;
}

}  // namespace

JobHost::JobHost(JobOptions options, const Clock* clock, Logged logged)
    : clock_(clock),
      is_logged_(logged.log != nullptr),
      job_(WithSecret(std::move(options)), clock->Now(), logged.log),
      pauses_(PauseWatchOfLeases(job_.config().lease_timeout)) {
  const absl::Time begun = clock->Now();
  if (!logged.events.empty()) {
    job_.Resume(logged.events, clock->Now());
    // Replaying takes time, and so does the nodes' way to a scheduler that has moved.
    const absl::Time end = clock->Now() + kReturnGrace;
    job_.WasHeldUp(end - begun);
  }
  thread_ = StartThread("bdn-job", [this] { Run(); });
}

JobHost::~JobHost() { Close(); }

absl::Time JobHost::Awake() {
  const absl::Time now = clock_->Now();
  const absl::Duration pause = pauses_.OnAwake(now);
  if (pause > absl::ZeroDuration() && job_.watches_leases()) {
    LogWarning("this scheduler was held up for %.1f s: all leases have that time again",
               absl::ToDoubleSeconds(pause));
    job_.WasHeldUp(pause);
  }
  return now;
}

template <typename Start>
CallId JobHost::Call(Done done, Start start) {
  MutexLock lock(&mu_);
  if (closed_) return 0;
  const CallId call_id = start(job_, Awake());
  waiting_.emplace(call_id, std::move(done));
  changed_.SignalAll();
  return call_id;
}

CallId JobHost::Join(const JoinRequest& request, uint32_t version, absl::Duration timeout,
                     Done done) {
  return Call(std::move(done), [&](Job& job, absl::Time now) {
    return job.Join(request, version, now + timeout, now);
  });
}

CallId JobHost::Declare(NodeId node, DeclarationPart part, absl::Duration timeout, Done done) {
  return Call(std::move(done), [&](Job& job, absl::Time now) {
    return job.Declare(node, std::move(part), now + timeout, now);
  });
}

CallId JobHost::ArriveAtBarrier(NodeId node, const Job::Arrival& arrival, absl::Duration timeout,
                                Done done) {
  return Call(std::move(done), [&](Job& job, absl::Time now) {
    return job.ArriveAtBarrier(node, arrival, now + timeout, now);
  });
}

CallId JobHost::Leave(NodeId node, const absl::Status& reason, absl::Duration timeout, Done done) {
  return Call(std::move(done), [&](Job& job, absl::Time now) {
    return job.Leave(node, reason, now + timeout, now);
  });
}

CallId JobHost::TryToLeave(NodeId node, const absl::Status& reason, Done done) {
  return Call(std::move(done),
              [&](Job& job, absl::Time now) { return job.TryToLeave(node, reason, now); });
}

void JobHost::Cancel(CallId call_id) {
  MutexLock lock(&mu_);
  if (is_left_to_another_) return;
  job_.Cancel(call_id);
  changed_.SignalAll();
}

absl::Status JobHost::AcknowledgePlacement(NodeId node, PlacementVersion version) {
  MutexLock lock(&mu_);
  absl::Status status = job_.AcknowledgePlacement(node, version, Awake());
  changed_.SignalAll();
  return status;
}

absl::Status JobHost::Heartbeat(NodeId node, const NodeProgress& progress) {
  // This thread does not wake JobHost's: a heartbeat only moves a deadline out, which that thread
  // finds when it wakes.
  MutexLock lock(&mu_);
  return job_.Heartbeat(node, progress, Awake());
}

absl::Status JobHost::ReportQuality(NodeId node, const std::vector<QualityGroup>& groups) {
  MutexLock lock(&mu_);
  return job_.ReportQuality(node, groups, Awake());
}

absl::Status JobHost::ReportWaits(NodeId node, const std::vector<NodeWait>& waits) {
  MutexLock lock(&mu_);
  absl::Status status = job_.ReportWaits(node, waits, Awake());
  changed_.SignalAll();
  return status;
}

absl::Status JobHost::Retire(NodeId node, const std::vector<uint32_t>& tensors) {
  MutexLock lock(&mu_);
  absl::Status status = job_.Retire(node, tensors, clock_->Now());
  changed_.SignalAll();
  return status;
}

absl::Status JobHost::Report(NodeId node, const std::vector<ReportedValue>& values) {
  MutexLock lock(&mu_);
  return job_.Report(node, values, Awake());
}

void JobHost::ConnectionBroke(NodeId node) {
  MutexLock lock(&mu_);
  job_.ConnectionBroke(node, Awake());
  changed_.SignalAll();
}

void JobHost::Lost(NodeId node, const std::string& how) {
  MutexLock lock(&mu_);
  // Deadlines that are over come first, and the events of this end get the right time.
  job_.Advance(Awake());
  job_.Lost(node, how);
  changed_.SignalAll();
}

void JobHost::Stop(const std::string& why) {
  MutexLock lock(&mu_);
  job_.Advance(Awake());
  job_.Stop(why);
  changed_.SignalAll();
}

uint64_t JobHost::AddObserver(Observed observed, std::function<void()> observer) {
  MutexLock lock(&mu_);
  const uint64_t id = next_observer_++;
  new_observers_.push_back(std::make_shared<const std::function<void()>>(std::move(observer)));
  observers_[observed].emplace(id, new_observers_.back());
  changed_.SignalAll();
  return id;
}

void JobHost::RemoveObserver(uint64_t id) {
  MutexLock lock(&mu_);
  for (auto& [observed, observers] : observers_) observers.erase(id);
}

Job::View JobHost::ViewOf(NodeId node) const {
  MutexLock lock(&mu_);
  return job_.ViewOf(node);
}

SharedDelta JobHost::DeltaOf(uint32_t version) const {
  MutexLock lock(&mu_);
  const std::vector<SharedDelta>& deltas = job_.declarations().deltas();
  return version < 1 || version > deltas.size() ? nullptr : deltas[version - 1];
}

SharedDelta JobHost::DeltaFor(NodeId worker, uint32_t first, uint32_t last) const {
  MutexLock lock(&mu_);
  const std::vector<SharedDelta>& deltas = job_.declarations().deltas();
  const MembershipTable::Member* const member = job_.table().Find(worker);
  if (first < 1 || last < first || last > deltas.size() || member == nullptr) return nullptr;
  for (uint32_t version = first; version <= last; ++version) {
    if (deltas[version - 1]->Concerns(member->info.rank)) return deltas[version - 1];
  }
  const CatalogueDelta& delta = *deltas[last - 1];
  return std::make_shared<const CatalogueDelta>(
      CatalogueDelta{.version = delta.version, .first_tensor = delta.first_tensor});
}

std::vector<Rank> JobHost::LeavingRanks(size_t first) const {
  MutexLock lock(&mu_);
  const std::vector<Rank>& ranks = job_.LeavingRanks();
  return {ranks.begin() + static_cast<ptrdiff_t>(std::min(first, ranks.size())), ranks.end()};
}

void JobHost::Read(const std::function<void(const Job&, absl::Time now)>& reader) const {
  MutexLock lock(&mu_);
  reader(job_, clock_->Now());
}

void JobHost::WaitForWork() {
  while (!closed_) {
    job_.Advance(Awake());
    if (job_.has_completions() || !new_observers_.empty() || job_.revision() != seen_) return;
    absl::Time next = job_.NextDeadline();
    // The thread must call PauseWatch in time, or every long sleep would look like a pause.
    if (job_.watches_leases()) next = std::min(next, pauses_.NextTime());
    clock_->WaitUntil(&changed_, &mu_, next);
  }
}

bool JobHost::HasNews(Observed observed) const {
  const Job::Revision now = job_.revision();
  switch (observed) {
    case Observed::kWorkers:
      return now.all != seen_.all;
    case Observed::kServers:
      return now.all != seen_.all || now.servers != seen_.servers;
    case Observed::kJob:
      return now != seen_;
  }
  return true;
}

std::vector<std::function<void()>> JobHost::TakeWork() {
  std::vector<std::function<void()>> work;
  for (Job::Completion& completion : job_.TakeCompletions()) {
    auto done = waiting_.extract(completion.call_id);
    if (done.empty()) continue;
    work.push_back([done = std::move(done.mapped()), completion = std::move(completion)] {
      done(completion);
    });
  }
  const auto add = [&work](const Observer& observer) {
    work.push_back([observer] { (*observer)(); });
  };
  for (const Observer& observer : std::exchange(new_observers_, {})) add(observer);
  for (const auto& [observed, observers] : observers_) {
    if (!HasNews(observed)) continue;
    for (const auto& [id, observer] : observers) add(observer);
  }
  // Under the same lock as the revision was read, so that no change falls between.
  seen_ = job_.revision();
  // The job keeps these calls, but nobody will end their waits any more.
  if (closed_) {
    const absl::Status end = is_logged_ ? Unavailable("the scheduler ends, and another goes on")
                                        : Cancelled("the scheduler is closing");
    for (auto& [call_id, done] : waiting_) {
      work.push_back([done = std::move(done), call_id = call_id, end] {
        done({call_id, end, {}, {}});
      });
    }
    waiting_.clear();
  }
  return work;
}

void JobHost::Run() {
  for (bool closed = false; !closed;) {
    std::vector<std::function<void()>> work;
    {
      MutexLock lock(&mu_);
      WaitForWork();
      work = TakeWork();
      closed = closed_;
    }
    // Without the lock: callbacks may call this JobHost.
    for (const auto& item : work) item();
  }
}

void JobHost::LeaveToAnother() {
  MutexLock lock(&mu_);
  is_left_to_another_ = is_logged_;
}

void JobHost::Close() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace bdn
