#include "scheduler/job_host.h"

#include <utility>

#include "common/base/secret.h"

namespace bdn {
namespace {

JobOptions WithSecret(JobOptions options) {
  if (options.data_secret.empty()) options.data_secret = RandomSecret();
  return options;
}

}  // namespace

JobHost::JobHost(JobOptions options, const Clock* clock)
    : clock_(clock),
      job_(WithSecret(std::move(options)), clock->Now()),
      thread_([this] { Run(); }) {}

JobHost::~JobHost() { Close(); }

template <typename Start>
CallId JobHost::Call(Done done, Start start) {
  MutexLock lock(&mu_);
  if (closed_) return 0;
  const CallId call_id = start(job_, clock_->Now());
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

CallId JobHost::Declare(NodeId node, std::vector<TensorDeclaration> tensors, absl::Duration timeout,
                        Done done) {
  return Call(std::move(done), [&](Job& job, absl::Time now) {
    return job.Declare(node, std::move(tensors), now + timeout, now);
  });
}

CallId JobHost::ArriveAtBarrier(NodeId node, const std::string& name, absl::Duration timeout,
                                Done done) {
  return Call(std::move(done), [&](Job& job, absl::Time now) {
    return job.ArriveAtBarrier(node, name, now + timeout, now);
  });
}

CallId JobHost::Leave(NodeId node, const absl::Status& reason, absl::Duration timeout, Done done) {
  return Call(std::move(done), [&](Job& job, absl::Time now) {
    return job.Leave(node, reason, now + timeout, now);
  });
}

void JobHost::Cancel(CallId call_id) {
  MutexLock lock(&mu_);
  job_.Cancel(call_id);
  changed_.SignalAll();
}

absl::Status JobHost::AcknowledgePlacement(NodeId node, PlacementVersion version) {
  MutexLock lock(&mu_);
  absl::Status status = job_.AcknowledgePlacement(node, version, clock_->Now());
  changed_.SignalAll();
  return status;
}

absl::Status JobHost::Heartbeat(NodeId node, const NodeProgress& progress) {
  // It only moves a deadline out: the thread finds out when it wakes.
  MutexLock lock(&mu_);
  return job_.Heartbeat(node, progress, clock_->Now());
}

void JobHost::ConnectionBroke(NodeId node) {
  MutexLock lock(&mu_);
  job_.ConnectionBroke(node, clock_->Now());
  changed_.SignalAll();
}

void JobHost::Lost(NodeId node, const std::string& how) {
  MutexLock lock(&mu_);
  job_.Lost(node, how);
  changed_.SignalAll();
}

void JobHost::Stop(const std::string& why) {
  MutexLock lock(&mu_);
  job_.Stop(why);
  changed_.SignalAll();
}

uint64_t JobHost::AddObserver(std::function<void()> observer) {
  MutexLock lock(&mu_);
  const uint64_t id = next_observer_++;
  observers_.emplace(id, std::make_shared<const std::function<void()>>(std::move(observer)));
  new_observer_ = true;
  changed_.SignalAll();
  return id;
}

void JobHost::RemoveObserver(uint64_t id) {
  MutexLock lock(&mu_);
  observers_.erase(id);
}

Job::View JobHost::ViewOf(NodeId node) const {
  MutexLock lock(&mu_);
  return job_.ViewOf(node);
}

void JobHost::Read(const std::function<void(const Job&, absl::Time now)>& reader) const {
  MutexLock lock(&mu_);
  reader(job_, clock_->Now());
}

void JobHost::WaitForWork() {
  while (!closed_) {
    job_.Advance(clock_->Now());
    if (job_.has_completions() || new_observer_ || job_.revision() != seen_revision_) return;
    clock_->WaitUntil(&changed_, &mu_, job_.NextDeadline());
  }
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
  if (new_observer_ || job_.revision() != seen_revision_) {
    for (const auto& [id, observer] : observers_) {
      work.push_back([observer = observer] { (*observer)(); });
    }
  }
  new_observer_ = false;
  seen_revision_ = job_.revision();
  if (closed_) {
    for (auto& [call_id, done] : waiting_) {
      work.push_back([done = std::move(done), call_id = call_id] {
        done({call_id, absl::CancelledError("the scheduler is closing"), {}, {}});
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
    for (const auto& item : work) item();
  }
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
