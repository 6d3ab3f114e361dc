#include "scheduler/service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/fault_point.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/control_channel.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/listener.h"
#include "proto/control.grpc.pb.h"
#include "scheduler/dump_calls.h"
#include "scheduler/piece_cache.h"
#include "scheduler/service_core.h"
#include "scheduler/status_reply.h"
#include "scheduler/unary_call.h"
#include "scheduler/watch_stream.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

// The time for answers that are on their way when the service closes.
constexpr absl::Duration kClosingGrace = absl::Milliseconds(500);
// A peer that has not completed the handshake by then, or has no call open for so long, is cut off.
constexpr int kHandshakeTimeoutMs = 10000;
constexpr int kIdleConnectionMs = 30000;
// A request with a piece of a recording, whose other fields are short.
constexpr size_t kMostUploadBytes = kMostDumpPieceBytes + 4096;
// The most calls of one connection at a time: a node needs a handful.
constexpr int kMostCallsAtOnce = 64;

class ServiceImpl final : public SchedulerService {
 public:
  ServiceImpl(JobOptions options, const Clock* clock, JobHost::Logged logged)
      : limits_(options.request_limits), core_(std::move(options), clock, std::move(logged)) {}
  ~ServiceImpl() override { Close(); }

  absl::Status Listen(const std::string& listen);

  int port() const override { return listener_->port(); }
  void EndHealth() override { server_->GetHealthCheckService()->SetServingStatus(false); }
  JobHost* host() override { return core_.host(); }
  void PostWork(std::function<void()> task) override { core_.work()->Post(std::move(task)); }
  uint64_t accept_failures() const override { return listener_->failures(); }
  bool AwaitNodesTold(absl::Duration timeout) override { return streams_.AwaitNodesTold(timeout); }
  Counts counts() const override {
    const Newcomers::Counts newcomers = core_.newcomers().counts();
    return {core_.calls_refused.load(std::memory_order_relaxed),
            core_.requests_read.load(std::memory_order_relaxed), newcomers.ended, newcomers.cut};
  }
  void Close() override;

 private:
  using JoinCall = UnaryCall<wire::JoinRequest, wire::JoinReply>;
  using DeclareCall = UnaryCall<wire::DeclareRequest, wire::DeclareReply>;
  using CatalogueCall = UnaryCall<wire::CatalogueRequest, grpc::ByteBuffer>;
  using BarrierCall = UnaryCall<wire::BarrierRequest, wire::BarrierReply>;
  using LeaveCall = UnaryCall<wire::LeaveRequest, wire::Empty>;
  using HeartbeatCall = UnaryCall<wire::HeartbeatRequest, wire::Empty>;
  using AcknowledgeCall = UnaryCall<wire::AcknowledgeRequest, wire::Empty>;
  using WaitsCall = UnaryCall<wire::Caller, wire::WaitsReply>;
  using UploadCall = UnaryCall<wire::TracePiece, wire::Empty>;
  using StatusCall = UnaryCall<wire::Empty, wire::StatusReply>;
  CallId OnJoin(JoinCall* call);
  CallId OnDeclare(DeclareCall* call);
  CallId OnCatalogue(CatalogueCall* call);
  CallId OnBarrier(BarrierCall* call);
  CallId OnLeave(LeaveCall* call);
  CallId OnHeartbeat(HeartbeatCall* call);
  CallId OnAcknowledge(AcknowledgeCall* call);
  CallId OnWaits(WaitsCall* call);
  CallId OnUpload(UploadCall* call);
  CallId OnStatus(StatusCall* call);
  void WriteJoined(const JoinResult& joined, JoinCall* call);

  template <typename Request, typename Reply>
  Method ServedBy(CallId (ServiceImpl::*handler)(UnaryCall<Request, Reply>*));
  void AddMethods();

  const RequestLimits limits_;
  ServiceCore core_;
  PieceCache pieces_{core_.host()};
  DumpCalls dumps_{&core_, [this] {
                     streams_.Step(Role::kServer);
                     streams_.Step(Role::kWorker);
                   }};
  WatchStreams streams_{&core_, &dumps_};
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
  std::atomic<bool> closed_{false};  // the first Close wins; publishes no other memory
};

CallId ServiceImpl::OnJoin(JoinCall* call) {
  const wire::JoinRequest& message = call->request();
  const auto request = Read(message);
  absl::Status status = request.status();
  if (status.ok()) {
    status = CheckCallerRole(core_.credentials(), call->context(), RoleName(request->role));
  }
  // A caller of another version has no nonce that we know: it is told which version we speak.
  if (status.ok() && message.version() == kControlVersion) {
    status = message.join_id() == 0
                 ? InvalidArgument("%s joins without a number of its own", request->host)
                 : core_.TakeNonce(message.nonce());
  }
  if (!status.ok()) return call->FinishNow(status);
  return call->FinishLater(core_.host()->Join(*request, message.version(),
                                              TimeoutFromMilliseconds(message.timeout_ms()),
                                              [this, call](const Job::Completion& done) {
                                                if (done.status.ok()) WriteJoined(done.join, call);
                                                call->Finish(done.status);
                                                FaultPoint("admit.some");
                                              }));
}

void ServiceImpl::WriteJoined(const JoinResult& joined, JoinCall* call) {
  wire::JoinReply* const reply = call->reply();
  reply->mutable_caller()->set_node(joined.node);
  reply->mutable_caller()->set_incarnation(call->request().join_id());
  reply->set_rank(joined.rank);
  Write(joined.config, reply->mutable_config());
  Write(*joined.membership, reply->mutable_membership());
  reply->set_data_secret(joined.data_secret);
  reply->set_candidate(joined.is_candidate);
  for (const int processes : joined.processes) {
    reply->add_processes(static_cast<uint32_t>(processes));
  }
}

CallId ServiceImpl::OnDeclare(DeclareCall* call) {
  const wire::DeclareRequest& message = call->request();
  absl::Status status = core_.CheckCaller(message.caller());
  if (!status.ok()) return call->FinishNow(status);
  auto part = Read(message);
  if (!part.ok()) return call->FinishNow(part.status());
  return call->FinishLater(core_.host()->Declare(message.caller().node(), *std::move(part),
                                                 TimeoutFromMilliseconds(message.timeout_ms()),
                                                 [call](const Job::Completion& done) {
                                                   if (done.status.ok())
                                                     Write(done.declared, call->reply());
                                                   call->Finish(done.status);
                                                 }));
}

CallId ServiceImpl::OnCatalogue(CatalogueCall* call) {
  const wire::CatalogueRequest& message = call->request();
  const absl::Status status = core_.CheckCaller(message.caller());
  if (!status.ok()) return call->FinishNow(status);
  auto piece = message.until() == 0 ? pieces_.Get(message.version(), message.piece())
                                    : pieces_.GetFor(message.caller().node(), message.version(),
                                                     message.until(), message.piece());
  if (!piece.ok()) return call->FinishNow(piece.status());
  *call->reply() = *std::move(piece);
  return call->FinishNow(absl::OkStatus());
}

CallId ServiceImpl::OnBarrier(BarrierCall* call) {
  const wire::BarrierRequest& message = call->request();
  const absl::Status status = core_.CheckCaller(message.caller());
  if (!status.ok()) return call->FinishNow(status);
  return call->FinishLater(core_.host()->ArriveAtBarrier(
      message.caller().node(), {message.name(), message.number(), message.first_open()},
      TimeoutFromMilliseconds(message.timeout_ms()), [call](const Job::Completion& done) {
        for (const Rank rank : done.met.vacant) call->reply()->add_vacant(rank);
        call->reply()->set_epoch(done.met.epoch);
        for (const Rank rank : done.met.newcomers) call->reply()->add_newcomers(rank);
        call->Finish(done.status);
      }));
}

CallId ServiceImpl::OnLeave(LeaveCall* call) {
  const wire::LeaveRequest& message = call->request();
  const absl::Status status = core_.CheckCaller(message.caller());
  if (!status.ok()) return call->FinishNow(status);
  const NodeId node = message.caller().node();
  const absl::Status reason =
      message.reason().code() == 0 ? absl::OkStatus() : ReadFailure(message.reason());
  const auto finish = [call](const Job::Completion& done) { call->Finish(done.status); };
  if (message.may_be_refused()) {
    return call->FinishLater(core_.host()->TryToLeave(node, reason, finish));
  }
  return call->FinishLater(
      core_.host()->Leave(node, reason, TimeoutFromMilliseconds(message.timeout_ms()), finish));
}

CallId ServiceImpl::OnHeartbeat(HeartbeatCall* call) {
  const wire::HeartbeatRequest& message = call->request();
  const absl::Status status = core_.CheckCaller(message.caller());
  if (!status.ok()) return call->FinishNow(status);
  const absl::StatusOr<StageCounts> stages = Read(message.stages());
  if (!stages.ok()) return call->FinishNow(Annotate(stages.status(), "heartbeat"));
  const absl::StatusOr<WorkCounts> work = Read(message.work());
  if (!work.ok()) return call->FinishNow(Annotate(work.status(), "heartbeat"));
  const absl::StatusOr<std::vector<ReportedValue>> reports = ReadReports(message);
  if (!reports.ok()) return call->FinishNow(Annotate(reports.status(), "heartbeat"));
  const absl::StatusOr<std::vector<QualityGroup>> quality = ReadQuality(message.quality());
  if (!quality.ok()) return call->FinishNow(Annotate(quality.status(), "heartbeat"));
  const absl::StatusOr<std::vector<uint32_t>> retired = ReadRetired(message);
  if (!retired.ok()) return call->FinishNow(Annotate(retired.status(), "heartbeat"));
  const absl::StatusOr<std::vector<NodeWait>> waits = ReadWaits(message);
  if (!waits.ok()) return call->FinishNow(Annotate(waits.status(), "heartbeat"));
  absl::StatusOr<std::vector<TableCounts>> tables = ReadTables(message);
  if (!tables.ok()) return call->FinishNow(Annotate(tables.status(), "heartbeat"));
  const NodeId node = message.caller().node();
  JobHost* const host = core_.host();
  // The lease is renewed first: what follows may fail because of the scheduler itself.
  absl::Status told = host->Heartbeat(node, {.step = message.step(),
                                             .bytes_sent = message.bytes_sent(),
                                             .bytes_received = message.bytes_received(),
                                             .held = Read(message.held()),
                                             .rows = Read(message.rows()),
                                             .tables = *std::move(tables),
                                             .stages = *stages,
                                             .work = *work,
                                             .ended = message.ended(),
                                             .keys_rebuilding = message.keys_rebuilding()});
  if (told.ok() && !retired->empty()) told = host->Retire(node, *retired);
  if (told.ok() && !reports->empty()) told = host->Report(node, *reports);
  if (told.ok() && !quality->empty()) told = host->ReportQuality(node, *quality);
  if (told.ok() && !waits->empty()) told = host->ReportWaits(node, *waits);
  // The node was heard, and is to know that.
  if (absl::IsUnavailable(told)) told = ResourceExhausted("%s", told.message());
  return call->FinishNow(told);
}

CallId ServiceImpl::OnAcknowledge(AcknowledgeCall* call) {
  const wire::AcknowledgeRequest& message = call->request();
  const absl::Status status = core_.CheckCaller(message.caller());
  if (!status.ok()) return call->FinishNow(status);
  return call->FinishNow(
      core_.host()->AcknowledgePlacement(message.caller().node(), Read(message.version())));
}

CallId ServiceImpl::OnWaits(WaitsCall* call) {
  const NodeId node = call->request().node();
  // A caller that has not joined has no secret to show, and is told only who is missing.
  const absl::Status status = node == 0 ? absl::OkStatus() : core_.CheckCaller(call->request());
  if (!status.ok()) return call->FinishNow(status);
  core_.host()->Read([call, node](const Job& job, absl::Time) {
    if (node != 0) {
      call->reply()->set_text(job.WaitsOf(node));
    } else if (job.state() == Job::State::kWaiting) {
      call->reply()->set_text("waiting for " + job.MissingNodes());
    } else if (job.state() == Job::State::kRunning) {
      call->reply()->set_text(job.WaitToJoin());
    }
  });
  return call->FinishNow(absl::OkStatus());
}

CallId ServiceImpl::OnUpload(UploadCall* call) {
  absl::Status status = core_.CheckCaller(call->request().caller());
  if (!status.ok()) return call->FinishNow(status);
  absl::StatusOr<TracePiece> piece = Read(call->request());
  const NodeId node = call->request().caller().node();
  if (!piece.ok()) {
    dumps_.OnNonsense(node, call->request().number(), piece.status());
    return call->FinishNow(piece.status());
  }
  dumps_.OnPiece(node, *std::move(piece),
                 [call](const absl::Status& answer) { call->Finish(answer); });
  return 0;
}

CallId ServiceImpl::OnStatus(StatusCall* call) {
  core_.host()->Read(
      [call](const Job& job, absl::Time now) { WriteStatus(job, now, call->reply()); });
  return call->FinishNow(absl::OkStatus());
}

template <typename Request, typename Reply>
Method ServiceImpl::ServedBy(CallId (ServiceImpl::*handler)(UnaryCall<Request, Reply>*)) {
  return {.most_bytes = limits_.max_request_bytes, .serve = [this, handler](ServerCall* call) {
            return std::make_unique<UnaryCall<Request, Reply>>(
                &core_, call, [this, handler](auto* unary) { return (this->*handler)(unary); });
          }};
}

void ServiceImpl::AddMethods() {
  const auto add = [this](const char* name, Method method) {
    core_.AddMethod(std::string("/") + wire::Scheduler::service_full_name() + "/" + name,
                    std::move(method));
  };
  add("Join", ServedBy(&ServiceImpl::OnJoin));
  Method declare = ServedBy(&ServiceImpl::OnDeclare);
  declare.most_bytes = limits_.max_declaration_bytes;
  declare.setting = "max-declaration-bytes";
  add("Declare", std::move(declare));
  add("Catalogue", ServedBy(&ServiceImpl::OnCatalogue));
  add("Barrier", ServedBy(&ServiceImpl::OnBarrier));
  add("Leave", ServedBy(&ServiceImpl::OnLeave));
  Method heartbeat = ServedBy(&ServiceImpl::OnHeartbeat);
  heartbeat.is_urgent = true;
  add("Heartbeat", std::move(heartbeat));
  add("AcknowledgePlacement", ServedBy(&ServiceImpl::OnAcknowledge));
  add("Waits", ServedBy(&ServiceImpl::OnWaits));
  add("Status", ServedBy(&ServiceImpl::OnStatus));
  Method upload = ServedBy(&ServiceImpl::OnUpload);
  upload.most_bytes = kMostUploadBytes;
  upload.setting = "the bound of a piece of a recording, which no setting changes,";
  add("UploadTrace", std::move(upload));
  add("Dump", {.most_bytes = limits_.max_request_bytes, .serve = [this](ServerCall* call) {
                 return std::make_unique<DumpStream>(&dumps_, call);
               }});
  add("Watch", {.most_bytes = limits_.max_request_bytes, .serve = [this](ServerCall* call) {
                  return std::make_unique<WatchStream>(&streams_, call);
                }});
}

absl::Status ServiceImpl::Listen(const std::string& listen) {
  BDN_ASSIGN_OR_RETURN(listener_, Listener::Open(listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  // Finds a machine that vanished without a word while its node waits for the others to join.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMostCallsAtOnce);
  // Bytes that are sent before they are read wait in RAM: without this probe no more than 64 KiB a
  // call, however fast the connection is.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.SetMaxReceiveMessageSize(static_cast<int>(
      std::max({limits_.max_declaration_bytes, limits_.max_request_bytes, kMostUploadBytes})));
  using Connections = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
      Connections::FROM_FD, ServerCredentialsOf(core_.credentials()));
  AddMethods();
  builder.RegisterAsyncGenericService(core_.generic_service());
  core_.set_queue(builder.AddCompletionQueue());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return Unavailable("cannot serve at %s: gRPC did not start", listen);
  ServerCall::AcceptNext(&core_);
  core_.host()->AddObserver(JobHost::Observed::kWorkers, [this] { streams_.Step(Role::kWorker); });
  core_.host()->AddObserver(JobHost::Observed::kServers, [this] {
    streams_.Step(Role::kServer);
    dumps_.OnJobChanged();
  });
  thread_ = StartThread("bdn-calls", [this] { core_.RunQueue(); });
  const auto take = [this](int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd;
    acceptor_->HandleNewConnection(&connection);
  };
  // Last, so that the first connection finds everything in place.
  listener_->Start(take, core_.newcomers());
  return absl::OkStatus();
}

void ServiceImpl::Close() {
  if (closed_.exchange(true)) return;
  core_.host()->LeaveToAnother();
  // No new connections first; then calls are ended, and then the threads that serve them, so that
  // none can start an operation on the queue once it is shut.
  if (listener_ != nullptr) listener_->Close();
  core_.work()->Post([this] { dumps_.Close(); });
  if (server_ != nullptr) server_->Shutdown(GrpcDeadline(kClosingGrace));
  core_.host()->Close();
  core_.work()->Close();
  if (core_.queue() == nullptr) return;
  if (!thread_.joinable()) {
    core_.ShutQueue();
    core_.RunQueue();
    return;
  }
  // The queue is shut on its own thread, so that no handler can be starting an operation on it
  // meanwhile.
  Tag shut([this](bool) { core_.ShutQueue(); });
  grpc::Alarm alarm;
  alarm.Set(core_.queue(), GrpcDeadline(absl::ZeroDuration()), &shut);
  thread_.join();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SchedulerService>> SchedulerService::Start(const std::string& listen,
                                                                          JobOptions options,
                                                                          const Clock* clock,
                                                                          JobHost::Logged logged) {
  BDN_RETURN_IF_ERROR(CheckJobOptions(options));
  auto service = std::make_unique<ServiceImpl>(std::move(options), clock, std::move(logged));
  BDN_RETURN_IF_ERROR(service->Listen(listen));
  return std::unique_ptr<SchedulerService>(std::move(service));
}

}  // namespace bdn
