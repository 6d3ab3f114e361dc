#include "scheduler/service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/listen_address.h"
#include "proto/control.grpc.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;
using AsyncService = wire::Scheduler::AsyncService;

// For answers that are on their way when the service closes.
constexpr absl::Duration kClosingGrace = absl::Milliseconds(500);

class ServiceImpl;

// What the completion queue hands back: one operation of a call that has ended.
class Tag {
 public:
  explicit Tag(std::function<void(bool ok)> run) : run_(std::move(run)) {}
  Tag(const Tag&) = delete;
  Tag& operator=(const Tag&) = delete;
  void Run(bool ok) { run_(ok); }

 private:
  const std::function<void(bool ok)> run_;
};

// One unary call, from its arrival to the end of its answer. Deletes itself once both its operation
// and the notice of its end have come back. Owned by the queue's thread; Finish may come from the
// host's.
template <typename Request, typename Reply>
class UnaryCall final {
 public:
  using Responder = grpc::ServerAsyncResponseWriter<Reply>;
  using Accept = void (AsyncService::*)(grpc::ServerContext*, Request*, Responder*,
                                        grpc::CompletionQueue*, grpc::ServerCompletionQueue*,
                                        void*);
  // Answers by Finish, now or later; returns the call_id of what it started, or 0.
  using Handler = std::function<CallId(UnaryCall*)>;

  static void AcceptNext(ServiceImpl* service, Accept accept, const Handler& handler) {
    new UnaryCall(service, accept, handler);
  }

  const Request& request() const { return request_; }
  Reply* reply() { return &reply_; }
  // Once.
  void Finish(const absl::Status& status) {
    if (status.ok()) {
      responder_.Finish(reply_, grpc::Status::OK, &operation_);
    } else {
      responder_.FinishWithError(ToGrpc(status), &operation_);
    }
  }

 private:
  UnaryCall(ServiceImpl* service, Accept accept, Handler handler);
  void OnOperation(bool ok);
  void OnDone();
  void Release() {
    if (--pending_ == 0) delete this;
  }

  ServiceImpl* const service_;
  const Accept accept_;
  const Handler handler_;
  grpc::ServerContext context_;
  Request request_;
  Reply reply_;
  Responder responder_{&context_};
  Tag operation_{[this](bool ok) { OnOperation(ok); }};
  Tag done_{[this](bool) { OnDone(); }};
  bool arrived_ = false;
  bool over_ = false;  // the notice of the end has come
  int pending_ = 2;
  CallId call_id_ = 0;
};

// One node's stream of events. Level-triggered: it compares what the node was told with what is, so
// a slow node skips states and nothing queues up. Guarded by the service's lock of streams.
class WatchStream final {
 public:
  explicit WatchStream(ServiceImpl* service);

  // Sends the next event if there is one and none is on its way.
  void Step();
  // A failure of the job has still to reach this node.
  bool owes_failure() const { return !finishing_ && !(told_.failure_said && !writing_); }

 private:
  struct Told {
    std::shared_ptr<const Membership> membership;
    std::shared_ptr<const Catalogue> catalogue;
    std::shared_ptr<const PlacementTable> placement;
    size_t leaving = 0;
    bool failure_said = false;
    bool done_said = false;
  };

  void OnOperation(bool ok);
  bool Continue(bool ok);  // false when the answer is out
  void OnDone();
  void Release();
  bool NextEvent(wire::Event* event);
  void Finish(const absl::Status& status);

  ServiceImpl* const service_;
  grpc::ServerContext context_;
  wire::Caller caller_;
  grpc::ServerAsyncWriter<wire::Event> writer_{&context_};
  Tag operation_{[this](bool ok) { OnOperation(ok); }};
  Tag done_{[this](bool) { OnDone(); }};
  bool arrived_ = false;   // a call has come
  bool accepted_ = false;  // and is a node's of this job
  bool writing_ = false;
  bool finishing_ = false;
  bool over_ = false;
  int pending_ = 2;
  Told told_;
};

class ServiceImpl final : public SchedulerService {
 public:
  explicit ServiceImpl(JobOptions options)
      : token_(options.token), incarnation_(RandomIncarnation()), host_(std::move(options)) {}
  ~ServiceImpl() override { Close(); }

  absl::Status Listen(const std::string& listen);

  int port() const override { return port_; }
  JobHost* host() override { return &host_; }
  bool AwaitFailureDelivered(absl::Duration timeout) override;
  void Close() override;

  AsyncService* async_service() { return &async_service_; }
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  // Queue thread only: nothing may be started on the queue any more.
  bool is_closing() const { return is_closing_; }
  absl::Status Authorize(const grpc::ServerContext& context) const;
  absl::Status CheckCaller(const wire::Caller& caller) const;
  uint64_t incarnation() const { return incarnation_; }

  Mutex* streams_mutex() { return &streams_mu_; }
  void AddStream(WatchStream* stream) { streams_.insert(stream); }
  void RemoveStream(WatchStream* stream);
  // After a write: somebody may wait for the streams.
  void OnStreamProgress() { streams_changed_.SignalAll(); }

 private:
  static uint64_t RandomIncarnation() {
    std::random_device random;
    return (uint64_t{random()} << 32) | random() | 1;
  }
  void AcceptCalls();
  template <typename Request, typename Reply>
  void AcceptCall(typename UnaryCall<Request, Reply>::Accept accept,
                  CallId (ServiceImpl::*handler)(UnaryCall<Request, Reply>*));
  void Serve();

  using JoinCall = UnaryCall<wire::JoinRequest, wire::JoinReply>;
  using DeclareCall = UnaryCall<wire::DeclareRequest, wire::DeclareReply>;
  using BarrierCall = UnaryCall<wire::BarrierRequest, wire::Empty>;
  using LeaveCall = UnaryCall<wire::LeaveRequest, wire::Empty>;
  using HeartbeatCall = UnaryCall<wire::HeartbeatRequest, wire::Empty>;
  using AcknowledgeCall = UnaryCall<wire::AcknowledgeRequest, wire::Empty>;
  using StatusCall = UnaryCall<wire::Empty, wire::StatusReply>;
  CallId OnJoin(JoinCall* call);
  CallId OnDeclare(DeclareCall* call);
  CallId OnBarrier(BarrierCall* call);
  CallId OnLeave(LeaveCall* call);
  CallId OnHeartbeat(HeartbeatCall* call);
  CallId OnAcknowledge(AcknowledgeCall* call);
  CallId OnStatus(StatusCall* call);

  const std::string token_;
  const uint64_t incarnation_;
  JobHost host_;

  // Of the queue's thread.
  bool is_closing_ = false;

  // Taken before the host's own lock.
  Mutex streams_mu_;
  CondVar streams_changed_;
  std::set<WatchStream*> streams_;  // guarded by streams_mu_

  AsyncService async_service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::thread thread_;
  std::atomic<bool> closed_{false};  // the first Close wins; publishes nothing
};

// ---- unary calls

template <typename Request, typename Reply>
UnaryCall<Request, Reply>::UnaryCall(ServiceImpl* service, Accept accept, Handler handler)
    : service_(service), accept_(accept), handler_(std::move(handler)) {
  context_.AsyncNotifyWhenDone(&done_);
  (service_->async_service()->*accept_)(&context_, &request_, &responder_, service_->queue(),
                                        service_->queue(), &operation_);
}

template <typename Request, typename Reply>
void UnaryCall<Request, Reply>::OnOperation(bool ok) {
  if (arrived_) return Release();  // the answer is out
  arrived_ = true;
  if (!ok) {  // the service is closing: no call came, and no notice of its end will
    delete this;
    return;
  }
  if (service_->is_closing()) return Release();
  AcceptNext(service_, accept_, handler_);
  const absl::Status status = service_->Authorize(context_);
  if (!status.ok()) return Finish(status);
  call_id_ = handler_(this);
  if (over_ && call_id_ != 0) service_->host()->Cancel(call_id_);
}

template <typename Request, typename Reply>
void UnaryCall<Request, Reply>::OnDone() {
  over_ = true;
  if (context_.IsCancelled() && call_id_ != 0) service_->host()->Cancel(call_id_);
  Release();
}

// ---- streams

WatchStream::WatchStream(ServiceImpl* service) : service_(service) {
  context_.AsyncNotifyWhenDone(&done_);
  service_->async_service()->RequestWatch(&context_, &caller_, &writer_, service_->queue(),
                                          service_->queue(), &operation_);
}

void WatchStream::OnOperation(bool ok) {
  if (!arrived_ && !ok) {  // the service is closing: no call came, and no notice of its end will
    delete this;
    return;
  }
  if (service_->is_closing() || !Continue(ok)) Release();
}

bool WatchStream::Continue(bool ok) {
  if (!arrived_) {
    new WatchStream(service_);
    absl::Status status = service_->Authorize(context_);
    if (status.ok()) status = service_->CheckCaller(caller_);
    MutexLock lock(service_->streams_mutex());
    arrived_ = true;
    accepted_ = status.ok();
    if (accepted_) service_->AddStream(this);
    if (over_ || !accepted_) {
      Finish(status);
    } else {
      Step();
    }
    return true;
  }
  MutexLock lock(service_->streams_mutex());
  if (finishing_) return false;
  writing_ = false;
  service_->OnStreamProgress();
  if (ok) Step();
  if (!ok || (over_ && !finishing_))
    Finish(absl::OkStatus());  // OnDone tells of a broken connection
  return true;
}

void WatchStream::OnDone() {
  bool broke;
  {
    MutexLock lock(service_->streams_mutex());
    over_ = true;
    broke = accepted_ && context_.IsCancelled() && !told_.failure_said;
    if (arrived_ && !writing_ && !finishing_ && !service_->is_closing()) Finish(absl::OkStatus());
  }
  if (broke) service_->host()->ConnectionBroke(caller_.node());
  Release();
}

void WatchStream::Release() {
  if (--pending_ > 0) return;
  service_->RemoveStream(this);
  delete this;
}

bool WatchStream::NextEvent(wire::Event* event) {
  const Job::View view = service_->host()->ViewOf(caller_.node());
  if (view.membership != nullptr && view.membership != told_.membership) {
    told_.membership = view.membership;
    Write(*view.membership, event->mutable_membership());
    return true;
  }
  if (view.catalogue->version > 0 && view.catalogue != told_.catalogue) {
    told_.catalogue = view.catalogue;
    Write(*view.catalogue, event->mutable_catalogue());
    return true;
  }
  // After the catalogue of the same view, whose keys it places.
  if (view.placement->version().catalogue > 0 && view.placement != told_.placement) {
    told_.placement = view.placement;
    Write(*view.placement, event->mutable_placement());
    return true;
  }
  if (view.leaving.size() > told_.leaving) {
    told_.leaving = view.leaving.size();
    Write(view.leaving, event->mutable_leaving());
    return true;
  }
  if (!view.failure.ok() && !told_.failure_said) {
    told_.failure_said = true;
    Write(view.failure, event->mutable_failure());
    return true;
  }
  if (view.done && !told_.done_said) {
    told_.done_said = true;
    event->mutable_done();
    return true;
  }
  return false;
}

void WatchStream::Step() {
  if (writing_ || finishing_ || over_) return;
  bool left = false;
  service_->host()->Read([&](const Job& job, absl::Time) {
    const MembershipTable::Member* member = job.table().Find(caller_.node());
    left = member == nullptr || member->left;
  });
  if (left || told_.failure_said) return Finish(absl::OkStatus());
  wire::Event event;
  if (!NextEvent(&event)) return;
  writing_ = true;
  writer_.Write(event, &operation_);
}

void WatchStream::Finish(const absl::Status& status) {
  finishing_ = true;
  writer_.Finish(ToGrpc(status), &operation_);
}

// ---- the service

absl::Status ServiceImpl::Authorize(const grpc::ServerContext& context) const {
  if (token_.empty()) return absl::OkStatus();
  const auto found = context.client_metadata().find(kTokenMetadata);
  if (found == context.client_metadata().end() ||
      !SameToken(token_, std::string(found->second.data(), found->second.size()))) {
    return PermissionDenied("wrong token from %s", context.peer());
  }
  return absl::OkStatus();
}

absl::Status ServiceImpl::CheckCaller(const wire::Caller& caller) const {
  if (caller.incarnation() != incarnation_) {
    return FailedPrecondition("node %d joined a scheduler that is gone", caller.node());
  }
  absl::Status status;
  host_.Read([&](const Job& job, absl::Time) {
    if (job.table().Find(caller.node()) == nullptr) {
      status = NotFound("node %d is not of this job", caller.node());
    }
  });
  return status;
}

void ServiceImpl::RemoveStream(WatchStream* stream) {
  MutexLock lock(&streams_mu_);
  streams_.erase(stream);
  streams_changed_.SignalAll();
}

CallId ServiceImpl::OnJoin(JoinCall* call) {
  const wire::JoinRequest& message = call->request();
  const auto request = Read(message);
  if (!request.ok()) {
    call->Finish(request.status());
    return 0;
  }
  const CallId call_id =
      host_.Join(*request, message.version(), TimeoutFromMilliseconds(message.timeout_ms()),
                 [this, call](const Job::Completion& done) {
                   if (done.status.ok()) {
                     call->reply()->mutable_caller()->set_node(done.join.node);
                     call->reply()->mutable_caller()->set_incarnation(incarnation_);
                     call->reply()->set_rank(done.join.rank);
                     Write(done.join.config, call->reply()->mutable_config());
                     Write(*done.join.membership, call->reply()->mutable_membership());
                   }
                   call->Finish(done.status);
                 });
  if (call_id == 0) call->Finish(Cancelled("the scheduler is closing"));
  return call_id;
}

CallId ServiceImpl::OnDeclare(DeclareCall* call) {
  const wire::DeclareRequest& message = call->request();
  auto tensors = Read(message);
  absl::Status status = CheckCaller(message.caller());
  if (status.ok()) status = tensors.status();
  if (!status.ok()) {
    call->Finish(status);
    return 0;
  }
  const CallId call_id = host_.Declare(message.caller().node(), *std::move(tensors),
                                       TimeoutFromMilliseconds(message.timeout_ms()),
                                       [call](const Job::Completion& done) {
                                         if (done.status.ok()) Write(done.declared, call->reply());
                                         call->Finish(done.status);
                                       });
  if (call_id == 0) call->Finish(Cancelled("the scheduler is closing"));
  return call_id;
}

CallId ServiceImpl::OnBarrier(BarrierCall* call) {
  if (const absl::Status status = CheckCaller(call->request().caller()); !status.ok()) {
    call->Finish(status);
    return 0;
  }
  const CallId call_id =
      host_.ComeToBarrier(call->request().caller().node(), call->request().name(),
                          TimeoutFromMilliseconds(call->request().timeout_ms()),
                          [call](const Job::Completion& done) { call->Finish(done.status); });
  if (call_id == 0) call->Finish(Cancelled("the scheduler is closing"));
  return call_id;
}

CallId ServiceImpl::OnLeave(LeaveCall* call) {
  if (const absl::Status status = CheckCaller(call->request().caller()); !status.ok()) {
    call->Finish(status);
    return 0;
  }
  const wire::Failure& reason = call->request().reason();
  const CallId call_id = host_.Leave(
      call->request().caller().node(), reason.code() == 0 ? absl::OkStatus() : ReadFailure(reason),
      TimeoutFromMilliseconds(call->request().timeout_ms()),
      [call](const Job::Completion& done) { call->Finish(done.status); });
  if (call_id == 0) call->Finish(Cancelled("the scheduler is closing"));
  return call_id;
}

CallId ServiceImpl::OnHeartbeat(HeartbeatCall* call) {
  const wire::HeartbeatRequest& message = call->request();
  absl::Status status = CheckCaller(message.caller());
  if (status.ok()) {
    status = host_.Heartbeat(message.caller().node(),
                             {message.step(), message.bytes_sent(), message.bytes_received()});
  }
  call->Finish(status);
  return 0;
}

CallId ServiceImpl::OnAcknowledge(AcknowledgeCall* call) {
  absl::Status status = CheckCaller(call->request().caller());
  if (status.ok()) {
    status =
        host_.AcknowledgePlacement(call->request().caller().node(),
                                   {call->request().epoch(), call->request().catalogue_version()});
  }
  call->Finish(status);
  return 0;
}

const char* StateName(Job::State state) {
  switch (state) {
    case Job::State::kWaiting:
      return "waiting";
    case Job::State::kRunning:
      return "running";
    case Job::State::kFailed:
      return "failed";
    case Job::State::kDone:
      return "done";
  }
  return "unknown";
}

void WriteStatus(const Job& job, absl::Time now, wire::StatusReply* reply) {
  Write(job.config(), reply->mutable_config());
  reply->set_state(StateName(job.state()));
  if (job.state() == Job::State::kWaiting) reply->set_missing(job.MissingNodes());
  Write(job.failure(), reply->mutable_failure());
  if (job.table().membership() != nullptr) reply->set_epoch(job.table().membership()->epoch);
  reply->set_catalogue_version(job.catalogue().version);
  reply->set_tensors(job.catalogue().tensors.size());
  reply->set_keys(job.catalogue().keys.size());
  std::map<NodeId, std::pair<uint64_t, uint64_t>> owned;
  for (const KeyEntry& key : job.catalogue().keys) {
    auto& [keys, bytes] = owned[job.placement().OwnerOf(key.key)];
    ++keys;
    bytes += KeyBytes(key);
  }
  for (const auto& [id, member] : job.table().members()) {
    wire::StatusReply::Node* node = reply->add_nodes();
    Write(member.info, node->mutable_info());
    node->set_left(member.left);
    node->set_step(member.progress.step);
    node->set_bytes_sent(member.progress.bytes_sent);
    node->set_bytes_received(member.progress.bytes_received);
    node->set_seconds_since_heard(absl::ToDoubleSeconds(now - member.last_heard));
    node->set_keys(owned[id].first);
    node->set_key_bytes(owned[id].second);
  }
}

CallId ServiceImpl::OnStatus(StatusCall* call) {
  host_.Read([call](const Job& job, absl::Time now) { WriteStatus(job, now, call->reply()); });
  call->Finish(absl::OkStatus());
  return 0;
}

template <typename Request, typename Reply>
void ServiceImpl::AcceptCall(typename UnaryCall<Request, Reply>::Accept accept,
                             CallId (ServiceImpl::*handler)(UnaryCall<Request, Reply>*)) {
  UnaryCall<Request, Reply>::AcceptNext(
      this, accept,
      [this, handler](UnaryCall<Request, Reply>* call) { return (this->*handler)(call); });
}

void ServiceImpl::AcceptCalls() {
  AcceptCall(&AsyncService::RequestJoin, &ServiceImpl::OnJoin);
  AcceptCall(&AsyncService::RequestDeclare, &ServiceImpl::OnDeclare);
  AcceptCall(&AsyncService::RequestBarrier, &ServiceImpl::OnBarrier);
  AcceptCall(&AsyncService::RequestLeave, &ServiceImpl::OnLeave);
  AcceptCall(&AsyncService::RequestHeartbeat, &ServiceImpl::OnHeartbeat);
  AcceptCall(&AsyncService::RequestAcknowledgePlacement, &ServiceImpl::OnAcknowledge);
  AcceptCall(&AsyncService::RequestStatus, &ServiceImpl::OnStatus);
  new WatchStream(this);
}

absl::Status ServiceImpl::Listen(const std::string& listen) {
  BDN_RETURN_IF_ERROR(CheckAddress(listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  // Two schedulers at one port must not share its calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A host that vanished without a word, while its node waits for the others to join.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(&async_service_);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port_ == 0) return ListenError(listen);
  AcceptCalls();
  host_.AddObserver([this] {
    MutexLock lock(&streams_mu_);
    for (WatchStream* stream : streams_) stream->Step();
    streams_changed_.SignalAll();
  });
  thread_ = std::thread([this] { Serve(); });
  return absl::OkStatus();
}

void ServiceImpl::Serve() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_->Next(&tag, &ok)) static_cast<Tag*>(tag)->Run(ok);
}

bool ServiceImpl::AwaitFailureDelivered(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&streams_mu_);
  const auto owed = [this] {
    return std::any_of(streams_.begin(), streams_.end(),
                       [](const WatchStream* stream) { return stream->owes_failure(); });
  };
  while (owed()) {
    if (!streams_changed_.WaitUntil(&streams_mu_, deadline)) return !owed();
  }
  return true;
}

void ServiceImpl::Close() {
  if (closed_.exchange(true)) return;
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kClosingGrace));
  }
  host_.Close();
  if (queue_ == nullptr) return;
  if (!thread_.joinable()) {
    queue_->Shutdown();
    void* tag;
    bool ok;
    while (queue_->Next(&tag, &ok)) static_cast<Tag*>(tag)->Run(ok);
    return;
  }
  // The queue is shut on its own thread, so that no handler can be starting something on it
  // meanwhile.
  Tag shut([this](bool) {
    is_closing_ = true;
    queue_->Shutdown();
  });
  grpc::Alarm alarm;
  alarm.Set(queue_.get(), std::chrono::system_clock::now(), &shut);
  thread_.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SchedulerService>> SchedulerService::Start(const std::string& listen,
                                                                          JobOptions options) {
  BDN_RETURN_IF_ERROR(CheckJobOptions(options));
  auto service = std::make_unique<ServiceImpl>(std::move(options));
  BDN_RETURN_IF_ERROR(service->Listen(listen));
  return std::unique_ptr<SchedulerService>(std::move(service));
}

}  // namespace bdn
