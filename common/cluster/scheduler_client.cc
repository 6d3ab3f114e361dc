#include "common/cluster/scheduler_client.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/mutex.h"
#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/catalogue_pieces.h"
#include "common/cluster/control_messages.h"
#include "common/cluster/event_delivery.h"
#include "common/cluster/listen_address.h"
#include "common/cluster/scheduler_calls.h"
#include "common/cluster/trace_uploads.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

// The time that a call waits beyond its timeout. The scheduler ends a wait by itself and says who
// was missing; this is for when it does not.
constexpr absl::Duration kAnswerGrace = absl::Seconds(5);
uint64_t RandomNonce() {
  uint64_t nonce;
  std::memcpy(&nonce, RandomSecret().data(), sizeof(nonce));
  return nonce;
}

class GrpcControlPlane final : public ControlPlane {
 public:
  GrpcControlPlane(const std::string& address, const Credentials& credentials, const Clock* clock,
                   const WaitReports& reports)
      : clock_(clock), reports_(reports), calls_(address, credentials, clock, reports) {}
  ~GrpcControlPlane() override { Close(); }

  absl::StatusOr<JoinResult> Join(const JoinRequest& request, absl::Duration timeout) override;
  void Watch(Events events) override;
  absl::StatusOr<DeclareResult> Declare(const std::vector<TensorDeclaration>& tensors,
                                        absl::Duration timeout) override;
  void Retire(const std::vector<uint32_t>& tensors) override;
  absl::Status AcknowledgePlacement(PlacementVersion version) override;
  absl::StatusOr<std::vector<Rank>> Meet(const std::string& name, absl::Duration timeout) override;
  absl::StatusOr<Met> MeetAtBoundary(absl::Duration timeout) override {
    return Arrive(kBoundary, timeout);
  }
  void ReportProgress(const NodeProgress& progress) override;
  void ReportStages(std::function<StageCounts()> read) override;
  void ReportWork(std::function<WorkCounts()> read) override;
  void ReportQuality(std::function<std::vector<QualityGroup>()> read) override;
  void ReportWaits(std::function<std::vector<NodeWait>()> read) override;
  void ReportTables(std::function<std::vector<TableCounts>()> read) override;
  absl::Status ReportValue(const ReportedValue& value) override;
  absl::Status Leave(const absl::Status& reason, absl::Duration timeout) override;
  absl::Status TryToLeave(const absl::Status& reason, absl::Duration timeout) override;
  absl::Duration SchedulerSilence() const override;
  void Close() override;

 private:
  absl::StatusOr<DeclarationAnswer> SayPart(const DeclarationPart& part, absl::Duration timeout);
  absl::StatusOr<SharedDelta> FetchDelta(uint32_t version, uint32_t until, absl::Time deadline);
  absl::StatusOr<Met> Arrive(const std::string& barrier, absl::Duration timeout);

  void RunHeartbeats();
  absl::Status SendHeartbeat(absl::Duration patience);
  // Sends the retired tensors to which the scheduler has not answered yet.
  absl::Status FlushRetired(absl::Time deadline);
  bool HasRetired();
  // Sends the values that the program reported last, before the node leaves: no heartbeat comes
  // after that.
  void FlushReports(bool is_failing);

  void ReadEvents(EventDelivery delivery);

  const Clock* const clock_;
  // When the last heartbeat was answered, in nanoseconds of the clock; 0 before the first begins.
  std::atomic<int64_t> answered_ns_{0};
  const WaitReports reports_;
  SchedulerCalls calls_;
  TraceUploads uploads_{&calls_, clock_};

  Mutex mu_;
  Rank rank_ ABSL_GUARDED_BY(mu_) = 0;
  JobConfig config_ ABSL_GUARDED_BY(mu_);
  Role role_ ABSL_GUARDED_BY(mu_) = Role::kWorker;
  // The version of the catalogue that Declare has returned.
  uint32_t declared_ ABSL_GUARDED_BY(mu_) = 0;
  // The number of the declaration whose end is not known yet.
  uint64_t declaration_ ABSL_GUARDED_BY(mu_) = 1;
  NodeProgress progress_ ABSL_GUARDED_BY(mu_);
  std::function<StageCounts()> read_stages_ ABSL_GUARDED_BY(mu_);  // null: no phases are reported
  std::function<WorkCounts()> read_work_ ABSL_GUARDED_BY(mu_);     // null: no work is reported
  // Null: no quality is reported.
  std::function<std::vector<QualityGroup>()> read_quality_ ABSL_GUARDED_BY(mu_);
  std::function<std::vector<NodeWait>()> read_waits_ ABSL_GUARDED_BY(mu_);  // null: of no server
  std::function<std::vector<TableCounts>()> read_tables_ ABSL_GUARDED_BY(mu_);
  uint64_t arrivals_ ABSL_GUARDED_BY(mu_) = 0;             // at barriers
  std::set<uint64_t> open_arrivals_ ABSL_GUARDED_BY(mu_);  // those without an answer
  ReportBuffer reports_waiting_ ABSL_GUARDED_BY(mu_);
  std::set<uint32_t> retired_ ABSL_GUARDED_BY(mu_);  // kept until the scheduler has answered
  std::thread heartbeat_thread_ ABSL_GUARDED_BY(mu_);
  std::thread event_thread_ ABSL_GUARDED_BY(mu_);
};

// ---- joining

absl::StatusOr<JoinResult> GrpcControlPlane::Join(const JoinRequest& request,
                                                  absl::Duration timeout) {
  wire::JoinRequest message;
  Write(request, &message);
  wire::JoinReply reply;
  absl::Status end;
  message.set_join_id(RandomNonce());
  const absl::Time begun = clock_->Now();
  const absl::Time deadline = begun + timeout;
  absl::Time report = begun + reports_.first_of_join;
  do {
    const absl::Duration left = deadline - clock_->Now();
    // A new nonce for each attempt: the scheduler refuses one that it has seen, because it may be a
    // replay.
    message.set_nonce(RandomNonce());
    message.set_timeout_ms(TimeoutToMilliseconds(left));
    end = calls_.Join(message, left + kAnswerGrace, deadline, &report, &reply);
    if (absl::IsUnavailable(end) && clock_->Now() >= report) {
      LogWarning("joining: the scheduler at %s says: %s; trying on", calls_.address(),
                 end.message());
      report = clock_->Now() + reports_.interval;
    }
    // Unavailable: the scheduler is between two jobs, or has gone and comes again.
  } while (absl::IsUnavailable(end) && clock_->Now() < deadline && calls_.WaitToRetry());
  if (!end.ok()) return calls_.ExplainJoin(end, clock_->Now() - begun);
  JoinResult result;
  result.node = reply.caller().node();
  result.rank = reply.rank();
  BDN_ASSIGN_OR_RETURN(result.config, Read(reply.config()));
  BDN_ASSIGN_OR_RETURN(Membership membership, Read(reply.membership()));
  // A worker is told of the servers only, and cannot find itself.
  const NodeInfo* self = membership.Find(result.node);
  const bool has_place =
      request.role == Role::kWorker
          ? result.rank >= 0 && result.rank < result.config.num_workers
          : self != nullptr && self->rank == result.rank && self->role == request.role;
  if (!has_place) {
    return Internal("scheduler at %s answered with a membership that lacks this node",
                    calls_.address());
  }
  result.membership = std::make_shared<const Membership>(std::move(membership));
  result.data_secret = reply.data_secret();
  result.is_candidate = reply.candidate();
  if (result.is_candidate && request.role != Role::kWorker) {
    return Internal("scheduler at %s takes a server for a candidate", calls_.address());
  }
  BDN_ASSIGN_OR_RETURN(result.processes, ReadProcesses(reply));
  if (result.processes.size() != static_cast<size_t>(result.config.num_workers)) {
    return Internal("scheduler at %s told the processes of %d workers, of %d", calls_.address(),
                    result.processes.size(), result.config.num_workers);
  }
  calls_.SetSelf(result.node, reply.caller().incarnation(), result.config.scheduler_timeout);
  SetLogPlace({.role = std::string(RoleName(request.role)),
               .job = result.config.job_id,
               .node = result.node,
               .rank = result.rank,
               .epoch = result.membership->epoch});
  MutexLock lock(&mu_);
  if (calls_.is_closed()) return Cancelled("the connection to the scheduler was closed");
  rank_ = result.rank;
  config_ = result.config;
  role_ = request.role;
  // From here on the scheduler expects to hear this node.
  heartbeat_thread_ = StartThread("bdn-heartbeat", [this] { RunHeartbeats(); });
  return result;
}

absl::StatusOr<DeclareResult> GrpcControlPlane::Declare(
    const std::vector<TensorDeclaration>& tensors, absl::Duration timeout) {
  const absl::Time deadline = clock_->Now() + timeout;
  uint32_t declared;
  uint64_t number;
  Rank rank;
  {
    MutexLock lock(&mu_);
    declared = declared_;
    rank = rank_;
    number = declaration_;
  }
  DeclarationAnswer answer;
  const absl::Status status = calls_.Retry(deadline, [&]() -> absl::Status {
    // Retired names are flushed first: otherwise these names would be taken for the old tensors.
    BDN_RETURN_IF_ERROR(FlushRetired(deadline));
    BDN_ASSIGN_OR_RETURN(answer, SendDeclaration(tensors, rank, [&](DeclarationPart part) {
                           part.number = number;
                           return SayPart(part, deadline - clock_->Now());
                         }));
    return absl::OkStatus();
  });
  // Only a known end starts the next number: a declaration repeated with the same number is the
  // same one to the scheduler, and not the next of this worker.
  const bool is_known = !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status) &&
                        !absl::IsCancelled(status);
  if (is_known) {
    MutexLock lock(&mu_);
    declaration_ = number + 1;
  }
  BDN_RETURN_IF_ERROR(status);
  DeclareResult result;
  while (declared < answer.version.catalogue) {
    BDN_ASSIGN_OR_RETURN(result.emplace_back(), FetchDelta(declared + 1, answer.version.catalogue,
                                                           deadline + kAnswerGrace));
    declared = result.back()->version.catalogue;
  }
  MutexLock lock(&mu_);
  declared_ = declared;
  return result;
}

absl::StatusOr<DeclarationAnswer> GrpcControlPlane::SayPart(const DeclarationPart& part,
                                                            absl::Duration timeout) {
  wire::DeclareRequest message;
  calls_.SetCaller(message.mutable_caller());
  Write(part, &message);
  message.set_timeout_ms(TimeoutToMilliseconds(timeout));
  wire::DeclareReply reply;
  BDN_RETURN_IF_ERROR(
      calls_.Declare(message, std::max(timeout, absl::ZeroDuration()) + kAnswerGrace, &reply));
  return Read(reply);
}

absl::StatusOr<SharedDelta> GrpcControlPlane::FetchDelta(uint32_t version, uint32_t until,
                                                         absl::Time deadline) {
  const auto fetch = [&](uint32_t piece, wire::CataloguePiece* message) {
    wire::CatalogueRequest request;
    calls_.SetCaller(request.mutable_caller());
    request.set_version(version);
    request.set_until(until);
    request.set_piece(piece);
    return calls_.Catalogue(request, deadline, message);
  };
  return ReadDelta(version, fetch, until);
}

void GrpcControlPlane::Retire(const std::vector<uint32_t>& tensors) {
  MutexLock lock(&mu_);
  retired_.insert(tensors.begin(), tensors.end());
}

bool GrpcControlPlane::HasRetired() {
  MutexLock lock(&mu_);
  return !retired_.empty();
}

absl::Status GrpcControlPlane::FlushRetired(absl::Time deadline) {
  absl::Status status;
  while (status.ok() && HasRetired()) {
    status = SendHeartbeat(deadline - clock_->Now() + kAnswerGrace);
  }
  // Heartbeats are cancelled where the job has failed, but do not know the failure.
  if (absl::IsCancelled(status) && !calls_.failure().ok()) return calls_.failure();
  if (absl::IsResourceExhausted(status)) return Unavailable("%s", status.message());
  return status;
}

absl::Status GrpcControlPlane::AcknowledgePlacement(PlacementVersion version) {
  wire::AcknowledgeRequest message;
  calls_.SetCaller(message.mutable_caller());
  Write(version, message.mutable_version());
  return calls_.AcknowledgePlacement(message);
}

absl::StatusOr<std::vector<Rank>> GrpcControlPlane::Meet(const std::string& name,
                                                         absl::Duration timeout) {
  BDN_ASSIGN_OR_RETURN(Met met, Arrive(name, timeout));
  return std::move(met.vacant);
}

absl::StatusOr<Met> GrpcControlPlane::Arrive(const std::string& name, absl::Duration timeout) {
  wire::BarrierRequest message;
  calls_.SetCaller(message.mutable_caller());
  message.set_name(name);
  {
    MutexLock lock(&mu_);
    message.set_number(++arrivals_);
    open_arrivals_.insert(arrivals_);
    message.set_first_open(*open_arrivals_.begin());
  }
  const absl::Time deadline = clock_->Now() + timeout;
  wire::BarrierReply reply;
  const absl::Status status = calls_.RetryAtReturn(deadline, [&](absl::Duration left) {
    message.set_timeout_ms(TimeoutToMilliseconds(left));
    return calls_.Barrier(message, left + kAnswerGrace, &reply);
  });
  {
    MutexLock lock(&mu_);
    open_arrivals_.erase(message.number());
  }
  BDN_RETURN_IF_ERROR(status);
  return ReadMet({reply.vacant().data(), static_cast<size_t>(reply.vacant().size())}, reply.epoch(),
                 {reply.newcomers().data(), static_cast<size_t>(reply.newcomers().size())});
}

void GrpcControlPlane::ReportProgress(const NodeProgress& progress) {
  MutexLock lock(&mu_);
  progress_.Update(progress);
  SetLogStep(progress_.step);
}

void GrpcControlPlane::ReportStages(std::function<StageCounts()> read) {
  MutexLock lock(&mu_);
  read_stages_ = std::move(read);
}

void GrpcControlPlane::ReportWork(std::function<WorkCounts()> read) {
  MutexLock lock(&mu_);
  read_work_ = std::move(read);
}

void GrpcControlPlane::ReportQuality(std::function<std::vector<QualityGroup>()> read) {
  MutexLock lock(&mu_);
  read_quality_ = std::move(read);
}

void GrpcControlPlane::ReportWaits(std::function<std::vector<NodeWait>()> read) {
  MutexLock lock(&mu_);
  read_waits_ = std::move(read);
}

void GrpcControlPlane::ReportTables(std::function<std::vector<TableCounts>()> read) {
  MutexLock lock(&mu_);
  read_tables_ = std::move(read);
}

absl::Status GrpcControlPlane::ReportValue(const ReportedValue& value) {
  MutexLock lock(&mu_);
  return reports_waiting_.Add(value);
}

absl::Status GrpcControlPlane::Leave(const absl::Status& reason, absl::Duration timeout) {
  FlushReports(!reason.ok());
  wire::LeaveRequest message;
  calls_.SetCaller(message.mutable_caller());
  Write(reason, message.mutable_reason());
  const auto leave = [&](absl::Duration left) {
    message.set_timeout_ms(TimeoutToMilliseconds(left));
    return calls_.Leave(message, left + kAnswerGrace);
  };
  absl::Duration patience = timeout;
  bool is_server;
  {
    MutexLock lock(&mu_);
    is_server = role_ == Role::kServer;
    // A node that has failed waits a little only: the next scheduler finds it lost.
    if (!reason.ok()) patience = std::min(patience, config_.lease_timeout);
  }
  const absl::Status left = calls_.RetryAtReturn(clock_->Now() + patience, leave);
  // A job that runs goes on without a server that leaves, or a worker that departs, and that news
  // may be here before the answer.
  const bool is_going = is_server ? reason.ok() : absl::IsUnavailable(reason);
  return is_going && IsEvicted(left) ? absl::OkStatus() : left;
}

absl::Status GrpcControlPlane::TryToLeave(const absl::Status& reason, absl::Duration timeout) {
  FlushReports(true);
  wire::LeaveRequest message;
  calls_.SetCaller(message.mutable_caller());
  Write(reason, message.mutable_reason());
  message.set_timeout_ms(TimeoutToMilliseconds(timeout));
  message.set_may_be_refused(true);
  const absl::Status left = calls_.Leave(message, timeout);
  // The news that this server is out may be here before the answer.
  return IsEvicted(left) ? absl::OkStatus() : left;
}

void GrpcControlPlane::Close() {
  calls_.Close();
  // The threads are joined without the lock, which they take.
  std::thread heartbeat_thread;
  std::thread event_thread;
  {
    MutexLock lock(&mu_);
    heartbeat_thread = std::move(heartbeat_thread_);
    event_thread = std::move(event_thread_);
  }
  if (heartbeat_thread.joinable()) heartbeat_thread.join();
  if (event_thread.joinable()) event_thread.join();
  // Behind the thread of events, which starts uploads.
  uploads_.Close();
  calls_.AwaitNone();
}

// ---- heartbeats

void GrpcControlPlane::FlushReports(bool is_failing) {
  absl::Duration patience;
  {
    MutexLock lock(&mu_);
    if (reports_waiting_.is_empty()) return;
    patience = config_.lease_timeout / 2;
  }
  // The scheduler itself may have failed, so the node does not wait long for it.
  if (is_failing) patience = std::min(patience, absl::Seconds(1));
  const absl::Status status = SendHeartbeat(patience);
  if (!status.ok()) LogDebug("what was reported last is lost: %s", status.message());
}

absl::Status GrpcControlPlane::SendHeartbeat(absl::Duration patience) {
  wire::HeartbeatRequest message;
  calls_.SetCaller(message.mutable_caller());
  std::function<StageCounts()> read_stages;
  std::function<WorkCounts()> read_work;
  std::function<std::vector<QualityGroup>()> read_quality;
  std::function<std::vector<NodeWait>()> read_waits;
  std::function<std::vector<TableCounts>()> read_tables;
  std::vector<ReportedValue> reports;
  {
    MutexLock lock(&mu_);
    reports = reports_waiting_.Take();
    for (const uint32_t tensor : retired_) {
      if (static_cast<size_t>(message.retired_size()) == kMostRetired) break;
      message.add_retired(tensor);
    }
    message.set_step(progress_.step);
    message.set_ended(progress_.ended);
    message.set_bytes_sent(progress_.bytes_sent);
    message.set_bytes_received(progress_.bytes_received);
    message.set_keys_rebuilding(progress_.keys_rebuilding);
    if (progress_.held.total() > 0) Write(progress_.held, message.mutable_held());
    if (progress_.rows != RowCounts()) Write(progress_.rows, message.mutable_rows());
    read_stages = read_stages_;
    read_work = read_work_;
    read_quality = read_quality_;
    read_waits = read_waits_;
    read_tables = read_tables_;
  }
  // Called without the lock: the readers take locks of their own.
  if (read_stages) Write(read_stages(), message.mutable_stages());
  if (read_work) Write(read_work(), message.mutable_work());
  if (read_quality) {
    for (const QualityGroup& group : read_quality()) Write(group, message.add_quality());
  }
  if (read_waits) Write(read_waits(), &message);
  if (read_tables) {
    for (const TableCounts& table : read_tables()) Write(table, message.add_tables());
  }
  Write(reports, &message);
  const absl::Status status = calls_.Heartbeat(message, patience);
  // Values that arrived although the answer was lost do no harm a second time: a curve takes the
  // mean of a step.
  MutexLock lock(&mu_);
  if (!status.ok() && !reports.empty()) reports_waiting_.GiveBack(reports);
  if (status.ok()) {
    for (const uint32_t tensor : message.retired()) retired_.erase(tensor);
  }
  return status;
}

void GrpcControlPlane::RunHeartbeats() {
  absl::Duration interval;
  absl::Duration lease;
  absl::Duration patience;
  {
    MutexLock lock(&mu_);
    interval = config_.heartbeat_interval;
    lease = config_.lease_timeout;
    patience = std::max(lease, config_.scheduler_timeout);
  }
  absl::Time begun = clock_->Now();
  absl::Time answered = begun;
  answered_ns_ = absl::ToUnixNanos(answered);
  absl::Duration pause = interval;
  int unanswered = 0;
  bool is_away = false;
  while (calls_.WaitInJob(begun + pause)) {
    begun = clock_->Now();
    // Half a lease at most: a heartbeat without an answer leaves time for another.
    const absl::Status status = SendHeartbeat(lease / 2);
    const double silence = absl::ToDoubleSeconds(clock_->Now() - answered);
    ++unanswered;
    // More tensors may be retired than one heartbeat takes, so the next follows at once.
    pause = status.ok() && HasRetired() ? absl::ZeroDuration() : interval;
    // Exhausted: the scheduler cannot note the retired tensors, and is to be told them again.
    if (status.ok() || absl::IsResourceExhausted(status)) {
      if (is_away)
        LogInfo("the scheduler at %s answers again, after %.1f s", calls_.address(), silence);
      is_away = false;
      answered = clock_->Now();
      answered_ns_ = absl::ToUnixNanos(answered);
      unanswered = 0;
    } else if (status.code() != absl::StatusCode::kUnavailable &&
               status.code() != absl::StatusCode::kDeadlineExceeded &&
               status.code() != absl::StatusCode::kCancelled) {
      return calls_.Fail(status);  // the job has failed, or the scheduler does not know this node
    } else if (clock_->Now() - answered > patience && unanswered > 1) {
      // A single unanswered heartbeat may only mean that this process itself was held up.
      return calls_.Fail(
          Aborted("scheduler at %s stopped answering %.1f s ago", calls_.address(), silence));
    } else if (clock_->Now() - answered > lease && !is_away) {
      is_away = true;
      LogWarning(
          "the scheduler at %s has not answered for %.1f s: training goes on, and this node "
          "waits up to %s for a scheduler with the job's journal",
          calls_.address(), silence, absl::FormatDuration(patience));
    }
  }
}

absl::Duration GrpcControlPlane::SchedulerSilence() const {
  const int64_t answered = answered_ns_;
  if (answered == 0) return absl::ZeroDuration();
  return std::max(absl::ZeroDuration(), clock_->Now() - absl::FromUnixNanos(answered));
}

// ---- events

void GrpcControlPlane::Watch(Events events) {
  MutexLock lock(&mu_);
  if (calls_.is_closed() || event_thread_.joinable()) return;
  const auto fetch = [this](uint32_t version) {
    return FetchDelta(version, 0, absl::InfiniteFuture());
  };
  const auto take_order = [this, make = events.on_dump](const DumpOrder& order) {
    uploads_.Start(order, make);
  };
  event_thread_ = StartThread("bdn-events", [this, fetch, take_order, events = std::move(events)] {
    ReadEvents(EventDelivery(events, fetch, take_order));
  });
}

void GrpcControlPlane::ReadEvents(EventDelivery delivery) {
  do {
    const absl::Status end = calls_.Watch([&](const wire::Event& event) {
      if (event.has_membership()) SetLogEpoch(event.membership().epoch());
      return delivery.Deliver(event);
    });
    // A broken stream is opened again: events are told by state, so the scheduler repeats what
    // counts.
    const bool is_broken =
        end.ok() || absl::IsUnavailable(end) || absl::IsCancelled(end) || absl::IsUnknown(end);
    if (!is_broken) calls_.Fail(end);  // the scheduler does not know this node
  } while (calls_.WaitToRetry());
  const absl::Status failure = calls_.failure();
  if (!failure.ok()) delivery.DeliverFailure(failure);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlPlane>> SchedulerClient::Create(
    const std::string& address, const Credentials& credentials, const Clock* clock,
    const WaitReports& reports) {
  BDN_RETURN_IF_ERROR(CheckAddress(address));
  return std::make_unique<GrpcControlPlane>(address, credentials, clock, reports);
}

}  // namespace bdn
