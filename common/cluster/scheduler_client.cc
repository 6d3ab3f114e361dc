#include "common/cluster/scheduler_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/catalogue_pieces.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/event_delivery.h"
#include "common/cluster/listen_address.h"
#include "proto/control.grpc.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

// The scheduler ends a wait by itself and says who was missing; this is for when it does not.
constexpr absl::Duration kAnswerGrace = absl::Seconds(5);
// Between two attempts at what a broken connection ended.
constexpr absl::Duration kRetryDelay = absl::Milliseconds(200);
// For what is only said in a log or an error.
constexpr absl::Duration kReasonTimeout = absl::Seconds(2);

uint64_t RandomNonce() {
  uint64_t nonce;
  std::memcpy(&nonce, RandomSecret().data(), sizeof(nonce));
  return nonce;
}

class GrpcControlPlane final : public ControlPlane {
 public:
  GrpcControlPlane(const std::string& address, const Credentials& credentials, const Clock* clock,
                   const WaitReports& reports)
      : address_(address),
        credentials_(credentials),
        clock_(clock),
        reports_(reports),
        channel_(ConnectChannel(address, credentials)),
        stub_(wire::Scheduler::NewStub(channel_)) {}
  ~GrpcControlPlane() override { Close(); }

  absl::StatusOr<JoinResult> Join(const JoinRequest& request, absl::Duration timeout) override;
  void Watch(Events events) override;
  absl::StatusOr<DeclareResult> Declare(const std::vector<TensorDeclaration>& tensors,
                                        absl::Duration timeout) override;
  absl::Status AcknowledgePlacement(PlacementVersion version) override;
  absl::Status Barrier(const std::string& name, absl::Duration timeout) override;
  void ReportProgress(const NodeProgress& progress) override;
  absl::Status Leave(const absl::Status& reason, absl::Duration timeout) override;
  void Close() override;

 private:
  // A call in progress: Close and a failure cancel all of them.
  class Call {
   public:
    Call(GrpcControlPlane* client, absl::Duration timeout) : client_(client) {
      SetDeadline(timeout, &context_);
      client->Begin(&context_);
    }
    ~Call() { client_->End(&context_); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    grpc::ClientContext* context() { return &context_; }

   private:
    GrpcControlPlane* const client_;
    grpc::ClientContext context_;
  };

  void Begin(grpc::ClientContext* context);
  void End(grpc::ClientContext* context);
  // What a call's end means to its caller.
  absl::Status Explain(const grpc::Status& status) const;
  void SetCaller(wire::Caller* caller) const;
  bool IsConnected() const { return channel_->GetState(false) == GRPC_CHANNEL_READY; }
  // What gRPC says of its last attempt to connect.
  std::string WhyUnreachable();
  absl::Status ExplainJoin(const grpc::Status& status, absl::Duration waited);

  // Makes a call that waits for others, and says from time to time whom it waits for. Where it is
  // given up unless there is a connection by `connected_by`, it ends in Cancelled.
  template <typename Request, typename Reply>
  using Start = std::unique_ptr<grpc::ClientAsyncResponseReader<Reply>> (wire::Scheduler::Stub::*)(
      grpc::ClientContext*, const Request&, grpc::CompletionQueue*);
  template <typename Request, typename Reply>
  grpc::Status Await(Start<Request, Reply> start, const char* what, const Request& request,
                     Call* call, Reply* reply, absl::Time* report,
                     absl::Time connected_by = absl::InfiniteFuture());
  void Report(const char* what, absl::Duration waited);
  // Waits until then. False, at once, when this node's part in the job is over.
  bool WaitInJob(absl::Time until);

  absl::StatusOr<DeclarationAnswer> SayPart(const DeclarationPart& part, absl::Duration timeout);
  // What may be said twice is said again while the scheduler cannot be reached.
  absl::Status Retry(absl::Time deadline, const std::function<absl::Status()>& attempt);
  absl::Status FetchPiece(uint32_t version, uint32_t piece, absl::Time deadline,
                          wire::CataloguePiece* message);
  absl::StatusOr<SharedDelta> FetchDelta(uint32_t version, absl::Time deadline);

  void RunHeartbeats();
  absl::Status SendHeartbeat();
  void Fail(const absl::Status& failure);

  void ReadEvents(EventDelivery delivery);
  bool ReadStream(EventDelivery* delivery, absl::Status* end);

  const std::string address_;
  const Credentials credentials_;
  const Clock* const clock_;
  const WaitReports reports_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<wire::Scheduler::Stub> stub_;

  mutable Mutex mu_;
  CondVar changed_;
  CondVar no_calls_;
  NodeId node_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  Rank rank_ ABSL_GUARDED_BY(mu_) = 0;
  JobConfig config_ ABSL_GUARDED_BY(mu_);
  uint32_t declared_ ABSL_GUARDED_BY(mu_) = 0;  // the catalogue that Declare has returned
  NodeProgress progress_ ABSL_GUARDED_BY(mu_);
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  std::thread heartbeat_thread_ ABSL_GUARDED_BY(mu_);
  std::thread event_thread_ ABSL_GUARDED_BY(mu_);
};

// ---- calls

void GrpcControlPlane::Begin(grpc::ClientContext* context) {
  ShowToken(credentials_, context);
  MutexLock lock(&mu_);
  calls_.insert(context);
  if (closed_ || !failure_.ok()) context->TryCancel();
}

void GrpcControlPlane::End(grpc::ClientContext* context) {
  MutexLock lock(&mu_);
  calls_.erase(context);
  if (calls_.empty()) no_calls_.SignalAll();
}

absl::Status GrpcControlPlane::Explain(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  MutexLock lock(&mu_);
  if (!failure_.ok()) return failure_;
  if (closed_) return Cancelled("the connection to the scheduler was closed");
  const absl::Status error = FromGrpc(status);
  if (error.code() == absl::StatusCode::kUnavailable) {
    const char* hint =
        credentials_.has_tls() ? " (each side must trust the other's certificate)" : "";
    return Unavailable("scheduler at %s cannot be reached: %s%s", address_, error.message(), hint);
  }
  return error;
}

void GrpcControlPlane::SetCaller(wire::Caller* caller) const {
  MutexLock lock(&mu_);
  caller->set_node(node_);
  caller->set_incarnation(incarnation_);
}

std::string GrpcControlPlane::WhyUnreachable() {
  wire::Empty reply;
  Call call(this, kReasonTimeout);
  const grpc::Status status = stub_->Heartbeat(call.context(), wire::HeartbeatRequest(), &reply);
  const bool is_silent = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  return is_silent ? "nothing answers at that address" : status.error_message();
}

void GrpcControlPlane::Report(const char* what, absl::Duration waited) {
  const double seconds = absl::ToDoubleSeconds(waited);
  if (!IsConnected()) {
    LogWarning("%s: no answer from a scheduler at %s in %.0f s; trying on", what, address_,
               seconds);
    return;
  }
  wire::Caller caller;
  SetCaller(&caller);
  wire::WaitsReply reply;
  Call call(this, kReasonTimeout);
  if (!stub_->Waits(call.context(), caller, &reply).ok()) reply.clear_text();
  LogWarning("still waiting after %.0f s: %s, by the scheduler at %s%s%s", seconds, what, address_,
             reply.text().empty() ? "" : ": ", reply.text());
}

template <typename Request, typename Reply>
grpc::Status GrpcControlPlane::Await(Start<Request, Reply> start, const char* what,
                                     const Request& request, Call* call, Reply* reply,
                                     absl::Time* report, absl::Time connected_by) {
  const absl::Time begun = clock_->Now();
  grpc::CompletionQueue queue;
  const auto reader = (stub_.get()->*start)(call->context(), request, &queue);
  grpc::Status status;
  reader->Finish(reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  for (;;) {
    const absl::Duration slice =
        std::max(std::min(*report, connected_by) - clock_->Now(), absl::ZeroDuration());
    const auto next = queue.AsyncNext(&tag, &ok, GrpcDeadline(slice));
    if (next != grpc::CompletionQueue::TIMEOUT) break;
    if (clock_->Now() >= connected_by) {
      connected_by = absl::InfiniteFuture();
      if (!IsConnected()) call->context()->TryCancel();
    }
    if (clock_->Now() < *report) continue;
    Report(what, clock_->Now() - begun);
    *report = clock_->Now() + reports_.interval;
  }
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) continue;
  return status;
}

absl::Status GrpcControlPlane::ExplainJoin(const grpc::Status& status, absl::Duration waited) {
  const absl::Status error = Explain(status);
  const bool closed = absl::IsCancelled(error) && status.error_code() != grpc::CANCELLED;
  if (error.ok() || closed) return error;
  if (status.error_code() == grpc::UNIMPLEMENTED) {
    return Unavailable("what answers at %s is no bandoneon-scheduler: %s", address_,
                       status.error_message());
  }
  if (IsConnected()) {
    if (status.error_code() != grpc::UNAVAILABLE) return error;
    return Unavailable("scheduler at %s: %s", address_, status.error_message());
  }
  {
    MutexLock lock(&mu_);
    if (closed_) return error;
  }
  return Unavailable(
      "%s, in %.0f s: is bandoneon-scheduler running there, is the address (--scheduler, "
      "BANDONEON_SCHEDULER) the one that it listens at, and does a firewall let it through?",
      Explain(grpc::Status(grpc::UNAVAILABLE, WhyUnreachable())).message(),
      absl::ToDoubleSeconds(waited));
}

absl::StatusOr<JoinResult> GrpcControlPlane::Join(const JoinRequest& request,
                                                  absl::Duration timeout) {
  wire::JoinRequest message;
  Write(request, &message);
  wire::JoinReply reply;
  grpc::Status end;
  const absl::Time begun = clock_->Now();
  const absl::Time deadline = begun + timeout;
  absl::Time report = begun + reports_.first_of_join;
  do {
    const absl::Duration left = deadline - clock_->Now();
    message.set_nonce(RandomNonce());
    message.set_timeout_ms(TimeoutToMilliseconds(left));
    Call call(this, left + kAnswerGrace);
    call.context()->set_wait_for_ready(true);
    end = Await(&wire::Scheduler::Stub::AsyncJoin, "joining", message, &call, &reply, &report,
                deadline);
    if (end.error_code() == grpc::StatusCode::UNAVAILABLE && clock_->Now() >= report) {
      LogWarning("joining: the scheduler at %s says: %s; trying on", address_, end.error_message());
      report = clock_->Now() + reports_.interval;
    }
    // A scheduler that is between two jobs, or went and comes again.
  } while (end.error_code() == grpc::StatusCode::UNAVAILABLE && clock_->Now() < deadline &&
           WaitInJob(clock_->Now() + kRetryDelay));
  if (!end.ok()) return ExplainJoin(end, clock_->Now() - begun);
  JoinResult result;
  result.node = reply.caller().node();
  result.rank = reply.rank();
  BDN_ASSIGN_OR_RETURN(result.config, Read(reply.config()));
  BDN_ASSIGN_OR_RETURN(Membership membership, Read(reply.membership()));
  // A worker is told of the servers alone.
  const NodeInfo* self = membership.Find(result.node);
  const bool has_place =
      request.role == Role::kWorker
          ? result.rank >= 0 && result.rank < result.config.num_workers
          : self != nullptr && self->rank == result.rank && self->role == request.role;
  if (!has_place) {
    return Internal("scheduler at %s answered with a membership that lacks this node", address_);
  }
  result.membership = std::make_shared<const Membership>(std::move(membership));
  result.data_secret = reply.data_secret();
  MutexLock lock(&mu_);
  if (closed_) return Cancelled("the connection to the scheduler was closed");
  node_ = result.node;
  incarnation_ = reply.caller().incarnation();
  rank_ = result.rank;
  config_ = result.config;
  heartbeat_thread_ = StartThread("bdn-heartbeat", [this] { RunHeartbeats(); });
  return result;
}

absl::StatusOr<DeclareResult> GrpcControlPlane::Declare(
    const std::vector<TensorDeclaration>& tensors, absl::Duration timeout) {
  const absl::Time deadline = clock_->Now() + timeout;
  uint32_t declared;
  bool is_first;
  {
    MutexLock lock(&mu_);
    declared = declared_;
    is_first = rank_ == 0;
  }
  BDN_ASSIGN_OR_RETURN(const DeclarationAnswer answer,
                       SendDeclaration(tensors, is_first, [&](const DeclarationPart& part) {
                         return SayPart(part, deadline - clock_->Now());
                       }));
  DeclareResult result;
  while (declared < answer.version.catalogue) {
    BDN_ASSIGN_OR_RETURN(result.emplace_back(), FetchDelta(++declared, deadline + kAnswerGrace));
  }
  MutexLock lock(&mu_);
  declared_ = declared;
  return result;
}

absl::StatusOr<DeclarationAnswer> GrpcControlPlane::SayPart(const DeclarationPart& part,
                                                            absl::Duration timeout) {
  wire::DeclareRequest message;
  SetCaller(message.mutable_caller());
  Write(part, &message);
  message.set_timeout_ms(TimeoutToMilliseconds(timeout));
  wire::DeclareReply reply;
  Call call(this, std::max(timeout, absl::ZeroDuration()) + kAnswerGrace);
  absl::Time report = clock_->Now() + reports_.interval;
  BDN_RETURN_IF_ERROR(Explain(Await(&wire::Scheduler::Stub::AsyncDeclare, "declaring tensors",
                                    message, &call, &reply, &report)));
  return Read(reply);
}

bool GrpcControlPlane::WaitInJob(absl::Time until) {
  MutexLock lock(&mu_);
  while (!closed_ && !left_ && failure_.ok()) {
    if (clock_->Now() >= until) return true;
    clock_->WaitUntil(&changed_, &mu_, until);
  }
  return false;
}

absl::Status GrpcControlPlane::FetchPiece(uint32_t version, uint32_t piece, absl::Time deadline,
                                          wire::CataloguePiece* message) {
  wire::CatalogueRequest request;
  SetCaller(request.mutable_caller());
  request.set_version(version);
  request.set_piece(piece);
  return Retry(deadline, [&] {
    Call call(this, deadline - clock_->Now());
    return Explain(stub_->Catalogue(call.context(), request, message));
  });
}

absl::Status GrpcControlPlane::Retry(absl::Time deadline,
                                     const std::function<absl::Status()>& attempt) {
  for (;;) {
    absl::Status status = attempt();
    if (status.code() != absl::StatusCode::kUnavailable || clock_->Now() >= deadline) return status;
    if (!WaitInJob(clock_->Now() + kRetryDelay)) return status;
  }
}

absl::StatusOr<SharedDelta> GrpcControlPlane::FetchDelta(uint32_t version, absl::Time deadline) {
  return ReadDelta(version, [&](uint32_t piece, wire::CataloguePiece* message) {
    return FetchPiece(version, piece, deadline, message);
  });
}

absl::Status GrpcControlPlane::AcknowledgePlacement(PlacementVersion version) {
  wire::AcknowledgeRequest message;
  SetCaller(message.mutable_caller());
  Write(version, message.mutable_version());
  // The stream of events tells of a version once, so that nobody else would say it again.
  return Retry(absl::InfiniteFuture(), [&] {
    wire::Empty reply;
    Call call(this, absl::InfiniteDuration());
    return Explain(stub_->AcknowledgePlacement(call.context(), message, &reply));
  });
}

absl::Status GrpcControlPlane::Barrier(const std::string& name, absl::Duration timeout) {
  wire::BarrierRequest message;
  SetCaller(message.mutable_caller());
  message.set_name(name);
  message.set_timeout_ms(TimeoutToMilliseconds(timeout));
  wire::Empty reply;
  Call call(this, timeout + kAnswerGrace);
  absl::Time report = clock_->Now() + reports_.interval;
  return Explain(
      Await(&wire::Scheduler::Stub::AsyncBarrier, "at a barrier", message, &call, &reply, &report));
}

void GrpcControlPlane::ReportProgress(const NodeProgress& progress) {
  MutexLock lock(&mu_);
  progress_ = progress;
}

absl::Status GrpcControlPlane::Leave(const absl::Status& reason, absl::Duration timeout) {
  wire::LeaveRequest message;
  SetCaller(message.mutable_caller());
  Write(reason, message.mutable_reason());
  message.set_timeout_ms(TimeoutToMilliseconds(timeout));
  wire::Empty reply;
  Call call(this, timeout + kAnswerGrace);
  absl::Time report = clock_->Now() + reports_.interval;
  const absl::Status status = Explain(
      Await(&wire::Scheduler::Stub::AsyncLeave, "leaving", message, &call, &reply, &report));
  MutexLock lock(&mu_);
  if (status.ok()) left_ = true;
  changed_.SignalAll();
  return status;
}

void GrpcControlPlane::Close() {
  std::thread heartbeat_thread;
  std::thread event_thread;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
    changed_.SignalAll();
    heartbeat_thread = std::move(heartbeat_thread_);
    event_thread = std::move(event_thread_);
  }
  if (heartbeat_thread.joinable()) heartbeat_thread.join();
  if (event_thread.joinable()) event_thread.join();
  MutexLock lock(&mu_);
  while (!calls_.empty()) no_calls_.Wait(&mu_);
}

// ---- heartbeats

absl::Status GrpcControlPlane::SendHeartbeat() {
  wire::HeartbeatRequest message;
  SetCaller(message.mutable_caller());
  absl::Duration patience;
  {
    MutexLock lock(&mu_);
    message.set_step(progress_.step);
    message.set_bytes_sent(progress_.bytes_sent);
    message.set_bytes_received(progress_.bytes_received);
    patience = config_.lease_timeout / 2;
  }
  wire::Empty reply;
  Call call(this, patience);
  return FromGrpc(stub_->Heartbeat(call.context(), message, &reply));
}

void GrpcControlPlane::RunHeartbeats() {
  absl::Duration interval;
  absl::Duration lease;
  {
    MutexLock lock(&mu_);
    interval = config_.heartbeat_interval;
    lease = config_.lease_timeout;
  }
  absl::Time answered = clock_->Now();
  while (WaitInJob(clock_->Now() + interval)) {
    const absl::Status status = SendHeartbeat();
    if (status.ok()) {
      answered = clock_->Now();
    } else if (status.code() != absl::StatusCode::kUnavailable &&
               status.code() != absl::StatusCode::kDeadlineExceeded &&
               status.code() != absl::StatusCode::kCancelled) {
      return Fail(status);  // the job has failed, or the scheduler does not know us
    } else if (clock_->Now() - answered > lease) {
      return Fail(Aborted("scheduler at %s stopped answering %.1f s ago", address_,
                          absl::ToDoubleSeconds(clock_->Now() - answered)));
    }
  }
}

// Ends every wait; the thread of events tells of it.
void GrpcControlPlane::Fail(const absl::Status& failure) {
  MutexLock lock(&mu_);
  if (left_ || closed_ || !failure_.ok()) return;
  failure_ = failure;
  for (grpc::ClientContext* context : calls_) context->TryCancel();
  changed_.SignalAll();
}

// ---- events

void GrpcControlPlane::Watch(Events events) {
  MutexLock lock(&mu_);
  if (closed_ || event_thread_.joinable()) return;
  const auto fetch = [this](uint32_t version) {
    return FetchDelta(version, absl::InfiniteFuture());
  };
  event_thread_ = StartThread("bdn-events", [this, fetch, events = std::move(events)] {
    ReadEvents(EventDelivery(events, fetch));
  });
}

void GrpcControlPlane::ReadEvents(EventDelivery delivery) {
  absl::Status end;
  while (ReadStream(&delivery, &end) && WaitInJob(clock_->Now() + kRetryDelay)) {
  }
  {
    MutexLock lock(&mu_);
    if (closed_ || left_) return;
    if (end.ok()) end = failure_;
  }
  if (!end.ok()) delivery.DeliverFailure(end);
}

// Reads one stream to its end. False when there will be no other; `end` is then what the last event
// said, if that was a failure.
bool GrpcControlPlane::ReadStream(EventDelivery* delivery, absl::Status* end) {
  wire::Caller caller;
  SetCaller(&caller);
  grpc::Status finish;
  absl::Status over;  // not OK after the last event
  {
    Call call(this, absl::InfiniteDuration());
    call.context()->set_wait_for_ready(true);
    const auto stream = stub_->Watch(call.context(), caller);
    wire::Event event;
    while (over.ok() && stream->Read(&event)) over = delivery->Deliver(event);
    if (!over.ok()) {
      Fail(over);
      call.context()->TryCancel();
    }
    finish = stream->Finish();
  }
  MutexLock lock(&mu_);
  *end = over;
  if (!over.ok() || closed_ || left_ || !failure_.ok()) return false;
  const absl::StatusCode code = FromGrpc(finish).code();
  if (finish.ok() || code == absl::StatusCode::kUnavailable ||
      code == absl::StatusCode::kCancelled || code == absl::StatusCode::kUnknown) {
    return true;
  }
  failure_ = FromGrpc(finish);  // the scheduler does not know us
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlPlane>> SchedulerClient::Create(
    const std::string& address, const Credentials& credentials, const Clock* clock,
    const WaitReports& reports) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  return std::make_unique<GrpcControlPlane>(address, credentials, clock, reports);
}

}  // namespace bdn
