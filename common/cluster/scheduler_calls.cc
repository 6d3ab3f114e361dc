#include "common/cluster/scheduler_calls.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "proto/control.grpc.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

// The time between two attempts at a call that a broken connection ended.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);
// The time for a call whose answer only goes into a log or an error.
constexpr absl::Duration kReasonTimeout = absl::Seconds(2);
// A heartbeat without an answer within this part of its time is tried over one more new connection.
constexpr int kAttemptsOfHeartbeat = 4;
constexpr size_t kMostAttempts = 5;  // includes those over existing connections
// The number of heartbeats' timeouts for which a connection may carry nothing while others do.
constexpr int kMostSilence = 6;

// Returns whether a call failed for want of a connection, and not by an answer of the scheduler.
bool IsBroken(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

}  // namespace

// gRPC's own class, which a header cannot name because it is nested.
struct SchedulerCalls::Stub {
  explicit Stub(const std::shared_ptr<grpc::Channel>& to) : channel(to), rpc(to) {}
  const std::shared_ptr<grpc::Channel> channel;
  wire::Scheduler::Stub rpc;
};

// One call in progress, which Close and Fail cancel.
class SchedulerCalls::Call {
 public:
  Call(SchedulerCalls* calls, absl::Duration timeout) : calls_(calls) {
    SetDeadline(timeout, &context_);
    ShowToken(calls->credentials_, &context_);
    MutexLock lock(&calls->mu_);
    calls->contexts_.insert(&context_);
    // Close or Fail may have come before the context was in the set, and would have missed it.
    if (calls->closed_ || !calls->failure_.ok()) context_.TryCancel();
  }
  ~Call() {
    MutexLock lock(&calls_->mu_);
    calls_->contexts_.erase(&context_);
    if (calls_->contexts_.empty()) calls_->no_calls_.SignalAll();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  grpc::ClientContext* context() { return &context_; }

 private:
  SchedulerCalls* const calls_;
  grpc::ClientContext context_;
};

SchedulerCalls::SchedulerCalls(const std::string& address, const Credentials& credentials,
                               const Clock* clock, const WaitReports& reports)
    : address_(address),
      credentials_(credentials),
      clock_(clock),
      reports_(reports),
      stub_(std::make_shared<Stub>(ConnectChannel(address, credentials))) {}

SchedulerCalls::~SchedulerCalls() = default;

std::shared_ptr<SchedulerCalls::Stub> SchedulerCalls::stub() const {
  MutexLock lock(&mu_);
  return stub_;
}

bool SchedulerCalls::IsConnected() const {
  return stub()->channel->GetState(false) == GRPC_CHANNEL_READY;
}

void SchedulerCalls::SetSelf(NodeId node, uint64_t incarnation, absl::Duration scheduler_timeout) {
  MutexLock lock(&mu_);
  scheduler_timeout_ = scheduler_timeout;
  node_ = node;
  incarnation_ = incarnation;
}

void SchedulerCalls::SetCaller(wire::Caller* caller) const {
  MutexLock lock(&mu_);
  caller->set_node(node_);
  caller->set_incarnation(incarnation_);
}

// ---- Waiting

void SchedulerCalls::Report(const char* what, absl::Duration waited) {
  const double seconds = absl::ToDoubleSeconds(waited);
  if (!IsConnected()) {
    LogWarning("%s: no answer from a scheduler at %s in %.0f s; trying on", what, address_,
               seconds);
    return;
  }
  wire::Caller self;
  SetCaller(&self);
  wire::WaitsReply reply;
  Call call(this, kReasonTimeout);
  // This goes into the log only, so an error is not worth a line of its own.
  if (!stub()->rpc.Waits(call.context(), self, &reply).ok()) reply.clear_text();
  LogWarning("still waiting after %.0f s: %s, by the scheduler at %s%s%s", seconds, what, address_,
             reply.text().empty() ? "" : ": ", reply.text());
}

template <typename Start, typename Request, typename Reply>
grpc::Status SchedulerCalls::Await(Start start, const char* what, const Request& request,
                                   Call* call, Reply* reply, absl::Time* report,
                                   absl::Time connected_by) {
  grpc::CompletionQueue queue;
  // An asynchronous call on a queue of its own: this thread waits in slices, and can log in
  // between.
  const std::shared_ptr<Stub> by = stub();
  const auto reader = (by->rpc.*start)(call->context(), request, &queue);
  grpc::Status status;
  reader->Finish(reply, &status, nullptr);
  const absl::Time begun = clock_->Now();
  void* tag = nullptr;
  bool ok = false;
  for (;;) {
    const absl::Duration slice =
        std::max(std::min(*report, connected_by) - clock_->Now(), absl::ZeroDuration());
    const auto next = queue.AsyncNext(&tag, &ok, GrpcDeadline(slice));
    if (next != grpc::CompletionQueue::TIMEOUT) break;
    // Without a connection by then the join is given up; with one, the scheduler's answer is
    // awaited.
    if (clock_->Now() >= connected_by) {
      connected_by = absl::InfiniteFuture();
      if (!IsConnected()) call->context()->TryCancel();
    }
    if (clock_->Now() < *report) continue;
    Report(what, clock_->Now() - begun);
    *report = clock_->Now() + reports_.interval;
  }
  // The queue must be empty before it is destroyed, even after a cancelled call.
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) continue;
  return status;
}

template <typename Start, typename Request, typename Reply>
absl::Status SchedulerCalls::AwaitOthers(Start start, const char* what, const Request& request,
                                         absl::Duration timeout, Reply* reply) {
  Call call(this, timeout);
  absl::Time report = clock_->Now() + reports_.interval;
  const absl::Status end = FromGrpc(Await(start, what, request, &call, reply, &report));
  // A scheduler that ends lets go of all calls. Its events tell the reason, maybe a little later,
  // so this waits for them.
  if (absl::IsCancelled(end) && !MayReturn()) {
    (void)WaitInJob(clock_->Now() + kReasonTimeout);
  }
  return Explain(end);
}

absl::Status SchedulerCalls::Retry(absl::Time deadline,
                                   const std::function<absl::Status()>& attempt) {
  for (;;) {
    absl::Status status = attempt();
    // Only Unavailable is repeated: every other code is an answer.
    if (status.code() != absl::StatusCode::kUnavailable || clock_->Now() >= deadline) return status;
    // The reason why this node's part is over says more than the last attempt's error.
    if (!WaitToRetry()) return failure().ok() ? status : failure();
  }
}

absl::Status SchedulerCalls::RetryAtReturn(
    absl::Time deadline, const std::function<absl::Status(absl::Duration left)>& attempt) {
  const auto once = [&] {
    return attempt(std::max(deadline - clock_->Now(), absl::ZeroDuration()));
  };
  return MayReturn() ? Retry(deadline, once) : once();
}

bool SchedulerCalls::MayReturn() const {
  MutexLock lock(&mu_);
  return scheduler_timeout_ > absl::ZeroDuration();
}

bool SchedulerCalls::WaitInJob(absl::Time until) {
  MutexLock lock(&mu_);
  while (!IsOver()) {
    if (clock_->Now() >= until) return true;
    clock_->WaitUntil(&changed_, &mu_, until);
  }
  return false;
}

bool SchedulerCalls::WaitToRetry() { return WaitInJob(clock_->Now() + kRetryDelay); }

// ---- Errors

absl::Status SchedulerCalls::Explain(const absl::Status& error) const {
  if (error.ok()) return error;
  MutexLock lock(&mu_);
  if (!failure_.ok()) return failure_;
  if (closed_) return Cancelled("the connection to the scheduler was closed");
  // A scheduler that ends lets go of its calls, and another one is to answer them.
  const bool is_let_go = absl::IsCancelled(error) && scheduler_timeout_ > absl::ZeroDuration();
  if (error.code() != absl::StatusCode::kUnavailable && !is_let_go) return error;
  // An answer of the scheduler itself: it cannot do that now.
  if (!is_let_go && stub_->channel->GetState(false) == GRPC_CHANNEL_READY) {
    return Unavailable("scheduler at %s: %s", address_, error.message());
  }
  const char* hint =
      credentials_.has_tls() ? " (each side must trust the other's certificate)" : "";
  return Unavailable("scheduler at %s cannot be reached: %s%s", address_, error.message(), hint);
}

std::string SchedulerCalls::WhyUnreachable() {
  wire::Empty reply;
  Call call(this, kReasonTimeout);
  const grpc::Status status =
      stub()->rpc.Heartbeat(call.context(), wire::HeartbeatRequest(), &reply);
  // A connection that is neither made nor refused leaves the deadline as the only reason.
  const bool is_silent = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return is_silent ? "nothing answers at that address" : status.error_message();
}

absl::Status SchedulerCalls::ExplainJoin(const absl::Status& error, absl::Duration waited) {
  if (error.ok() || is_closed()) return Explain(error);
  // Another gRPC service answers so.
  if (absl::IsUnimplemented(error)) {
    return Unavailable("what answers at %s is no bandoneon-scheduler: %s", address_,
                       error.message());
  }
  if (IsConnected()) {
    if (!absl::IsUnavailable(error)) return error;
    return Unavailable("scheduler at %s: %s", address_, error.message());
  }
  return Unavailable(
      "%s, in %.0f s: is bandoneon-scheduler running there, is the address (--scheduler, "
      "BANDONEON_SCHEDULER) the one that it listens at, and does a firewall let it through?",
      Explain(Unavailable("%s", WhyUnreachable())).message(), absl::ToDoubleSeconds(waited));
}

// ---- The calls

absl::Status SchedulerCalls::Join(const wire::JoinRequest& request, absl::Duration timeout,
                                  absl::Time connected_by, absl::Time* report,
                                  wire::JoinReply* reply) {
  Call call(this, timeout);
  // A scheduler that is not up yet is waited for.
  call.context()->set_wait_for_ready(true);
  return FromGrpc(Await(&wire::Scheduler::Stub::AsyncJoin, "joining", request, &call, reply, report,
                        connected_by));
}

absl::Status SchedulerCalls::Declare(const wire::DeclareRequest& request, absl::Duration timeout,
                                     wire::DeclareReply* reply) {
  return AwaitOthers(&wire::Scheduler::Stub::AsyncDeclare, "declaring tensors", request, timeout,
                     reply);
}

absl::Status SchedulerCalls::Barrier(const wire::BarrierRequest& request, absl::Duration timeout,
                                     wire::BarrierReply* reply) {
  return AwaitOthers(&wire::Scheduler::Stub::AsyncBarrier, "at a barrier", request, timeout, reply);
}

absl::Status SchedulerCalls::Leave(const wire::LeaveRequest& request, absl::Duration timeout) {
  wire::Empty reply;
  const absl::Status status =
      AwaitOthers(&wire::Scheduler::Stub::AsyncLeave, "leaving", request, timeout, &reply);
  if (!status.ok()) return status;
  MutexLock lock(&mu_);
  left_ = true;
  changed_.SignalAll();
  return status;
}

absl::Status SchedulerCalls::Catalogue(const wire::CatalogueRequest& request, absl::Time deadline,
                                       wire::CataloguePiece* piece) {
  return Retry(deadline, [&] {
    Call call(this, deadline - clock_->Now());
    return Explain(FromGrpc(stub()->rpc.Catalogue(call.context(), request, piece)));
  });
}

absl::Status SchedulerCalls::AcknowledgePlacement(const wire::AcknowledgeRequest& request) {
  // The stream of events tells of a version once, so nobody else would acknowledge it again.
  return Retry(absl::InfiniteFuture(), [&] {
    wire::Empty reply;
    Call call(this, absl::InfiniteDuration());
    return Explain(FromGrpc(stub()->rpc.AcknowledgePlacement(call.context(), request, &reply)));
  });
}

absl::Status SchedulerCalls::UploadTrace(const wire::TracePiece& piece, absl::Time deadline) {
  return Retry(deadline, [&] {
    wire::Empty reply;
    Call call(this, deadline - clock_->Now());
    return Explain(FromGrpc(stub()->rpc.UploadTrace(call.context(), piece, &reply)));
  });
}

// One attempt at a heartbeat, over a connection that exists or one that is made for it.
struct SchedulerCalls::Attempt {
  Attempt(SchedulerCalls* calls, absl::Duration timeout, std::shared_ptr<Stub> by)
      : stub(std::move(by)), call(calls, timeout) {}
  const std::shared_ptr<Stub> stub;
  Call call;
  std::unique_ptr<grpc::ClientAsyncResponseReader<wire::Empty>> reader;
  wire::Empty reply;
  grpc::Status status;
};

absl::Status SchedulerCalls::Heartbeat(const wire::HeartbeatRequest& request,
                                       absl::Duration timeout) {
  const absl::Time begun = clock_->Now();
  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<Attempt>> attempts;
  const auto start = [&](std::shared_ptr<Stub> stub) {
    attempts.push_back(
        std::make_unique<Attempt>(this, begun + timeout - clock_->Now(), std::move(stub)));
    Attempt& attempt = *attempts.back();
    attempt.reader = attempt.stub->rpc.AsyncHeartbeat(attempt.call.context(), request, &queue);
    attempt.reader->Finish(&attempt.reply, &attempt.status, &attempt);
  };
  std::shared_ptr<Stub> spare;
  {
    MutexLock lock(&mu_);
    spare = spare_;
  }
  start(stub());
  if (spare != nullptr) start(spare);
  const absl::Duration patience = timeout / kAttemptsOfHeartbeat;
  absl::Time next = begun + patience;
  const Attempt* answered = nullptr;
  void* tag = nullptr;
  bool ok = false;
  for (size_t ended = 0; answered == nullptr && ended < attempts.size();) {
    const absl::Duration left = std::max(next - clock_->Now(), absl::ZeroDuration());
    if (queue.AsyncNext(&tag, &ok, GrpcDeadline(left)) == grpc::CompletionQueue::TIMEOUT) {
      next += patience;
      if (attempts.size() == kMostAttempts) continue;
      start(std::make_shared<Stub>(ConnectChannel(address_, credentials_)));
    } else {
      ++ended;
      const auto* attempt = static_cast<const Attempt*>(tag);
      if (!IsBroken(attempt->status)) answered = attempt;
    }
  }
  const Attempt* const first = attempts.front().get();
  if (answered == nullptr) answered = first;
  // The first connection may be only a little later, and healthy; it is preferred, because all
  // other calls depend on it.
  const absl::Time patient_until = clock_->Now() + patience;
  while (answered != first &&
         queue.AsyncNext(&tag, &ok, GrpcDeadline(patient_until - clock_->Now())) ==
             grpc::CompletionQueue::GOT_EVENT) {
    if (tag != first) continue;
    if (!IsBroken(first->status)) answered = first;
    break;
  }
  for (const auto& attempt : attempts) attempt->call.context()->TryCancel();
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) continue;
  return OnHeartbeat(*answered, begun, timeout);
}

// Evaluates the attempt that was answered first, or that over the first connection where none was.
absl::Status SchedulerCalls::OnHeartbeat(const Attempt& answered, absl::Time begun,
                                         absl::Duration timeout) {
  const absl::Status status = FromGrpc(answered.status);
  MutexLock lock(&mu_);
  const bool by_first = answered.stub == stub_;
  if (!by_first) {
    if (spare_ == nullptr) silent_since_ = begun;
    // The connection that worked is kept: a new one for every heartbeat would cost a handshake
    // each.
    spare_ = answered.stub;
    if (clock_->Now() - silent_since_ <= kMostSilence * timeout) return status;
    if (scheduler_timeout_ > absl::ZeroDuration()) {
      // The scheduler serves elsewhere now: all calls are made again over the connection to there.
      stub_ = std::exchange(spare_, nullptr);
      for (grpc::ClientContext* context : contexts_) context->TryCancel();
      return status;
    }
    return Aborted("the connection to the scheduler at %s has carried nothing for %.0f s", address_,
                   absl::ToDoubleSeconds(clock_->Now() - silent_since_));
  }
  // The first connection was answered, or has broken and will be made anew: no spare is needed.
  if (!absl::IsDeadlineExceeded(status)) spare_ = nullptr;
  return status;
}

absl::Status SchedulerCalls::Watch(absl::FunctionRef<absl::Status(const wire::Event&)> deliver) {
  wire::Caller self;
  SetCaller(&self);
  Call call(this, absl::InfiniteDuration());
  call.context()->set_wait_for_ready(true);
  const std::shared_ptr<Stub> by = stub();
  const auto stream = by->rpc.Watch(call.context(), self);
  wire::Event event;
  absl::Status status;
  while (status.ok() && stream->Read(&event)) status = deliver(event);
  if (!status.ok()) {
    Fail(status);
    call.context()->TryCancel();
  }
  return FromGrpc(stream->Finish());
}

// ---- What ends all calls

void SchedulerCalls::CancelAll() {
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
  changed_.SignalAll();
}

void SchedulerCalls::Fail(const absl::Status& failure) {
  MutexLock lock(&mu_);
  if (IsOver()) return;
  failure_ = failure;
  CancelAll();
}

void SchedulerCalls::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  CancelAll();
}

void SchedulerCalls::AwaitNone() {
  MutexLock lock(&mu_);
  while (!contexts_.empty()) no_calls_.Wait(&mu_);
}

bool SchedulerCalls::is_closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

absl::Status SchedulerCalls::failure() const {
  MutexLock lock(&mu_);
  return closed_ || left_ ? absl::OkStatus() : failure_;
}

}  // namespace bdn
