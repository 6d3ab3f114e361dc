#include "worker/host/host_server.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

constexpr uint64_t kNoLimit = ~uint64_t{0};
// The time in which a host that has lost a process tries to tell the scheduler, and between two
// tries.
constexpr absl::Duration kTimeToDepart = absl::Seconds(2);
constexpr absl::Duration kBetweenTries = absl::Milliseconds(100);

std::shared_ptr<ShmArena> MakeArena() {
  auto arena = std::make_shared<ShmArena>(kNoLimit);
  arena->Enable();
  return arena;
}

}  // namespace

// ---- Life

HostServer::HostServer(const Options& options, const Clock* clock)
    : clock_(clock),
      arena_(MakeArena()),
      processes_(options, clock, arena_),
      exchanges_(arena_, &processes_, [this](const std::string& reason) { AbortJob(reason); }),
      calls_(arena_, clock, &processes_, &exchanges_, &threads_,
             [this](const std::string& reason) { OnDeparted(reason); }) {}

HostServer::~HostServer() { Close(); }

void HostServer::Start(HostListener* listener, Worker* worker, const Registry* telemetry) {
  worker_ = worker;
  processes_.Start(listener, worker);
  exchanges_.Start(worker);
  calls_.Start(worker, telemetry);
  poller_ = StartThread("bdn-host", [this] { Poll(); });
}

void HostServer::OnFailure(const absl::Status& status) {
  // The first failure is the cause. Processes hear it before the ends of their pushes and calls,
  // which follow from it.
  if (!processes_.Fail(status)) return;
  exchanges_.Fail(status);
  calls_.Fail(status);
}

absl::Status HostServer::Wait() {
  const absl::Status status = processes_.Wait();
  return calls_.departs() && IsEvicted(status) ? absl::OkStatus() : status;
}

void HostServer::Close() {
  // In this order: the polling thread starts calls, calls use the processes, and what both use goes
  // last.
  processes_.Close();
  if (poller_.joinable()) poller_.join();
  threads_.Join();
  processes_.Clear();
  calls_.Clear();
}

void HostServer::AbortJob(const std::string& reason) {
  if (reason.empty()) return;
  // The worker's Abort calls the scheduler and then OnFailure, for which the polling thread must
  // not wait.
  threads_.Run([this, reason] { (void)worker_->Abort(reason); });
}

void HostServer::GiveUpHost(const std::string& reason) {
  if (reason.empty()) return;
  threads_.Run([this, reason] {
    const absl::Time until = clock_->Now() + kTimeToDepart;
    absl::Status departed = worker_->Depart(reason);
    // Its connection may be lost with the process, or another scheduler is on its way.
    while (absl::IsUnavailable(departed) && clock_->Now() < until) {
      absl::SleepFor(kBetweenTries);
      departed = worker_->Depart(reason);
    }
    if (absl::IsFailedPrecondition(departed)) {
      // The job needs this host.
      (void)worker_->Abort(reason);
    } else if (departed.ok() || worker_->config().min_workers > 0) {
      OnDeparted(reason);  // or the scheduler misses it soon
    } else {
      OnFailure(Unavailable("%s", reason));
    }
  });
}

void HostServer::OnDeparted(const std::string& reason) {
  OnFailure(Evicted("the job goes on without this host: %s", reason));
}

// ---- The polling thread

void HostServer::Poll() {
  for (;;) {
    std::vector<HostProcesses::Ready> ready;
    if (!processes_.Poll(calls_.NextTime(), &ready)) return;
    for (const HostProcesses::Ready& one : ready) {
      // First its messages: it may have left the job with the last one.
      if (one.is_readable) OnReadable(one.process);
      if (!one.ended.ok()) OnGone(one.process, one.ended);
    }
    processes_.Accept();
    OnTime();
  }
}

void HostServer::OnReadable(const HostProcessRef& process) {
  // A message may end in OnGone, after which no further one counts.
  while (!processes_.IsGone(*process)) {
    absl::StatusOr<std::optional<std::string>> bytes = process->channel->Receive();
    if (!bytes.ok()) return OnGone(process, bytes.status());
    if (!bytes->has_value()) return;
    processes_.Heard(process);
    const absl::Status status = OnMessage(process, **bytes);
    if (!status.ok()) return OnGone(process, status);
  }
}

absl::Status HostServer::OnMessage(const HostProcessRef& process, const std::string& bytes) {
  wire::ToDaemon message;
  if (!message.ParseFromString(bytes)) return InvalidArgument("a message that is none");
  if (message.has_hello()) return processes_.OnHello(process, message.hello());
  if (message.has_segment()) {
    return process->channel->AddSegment(message.segment().index(), message.segment().bytes());
  }
  // Before the welcome it has no local rank, by which all parts know it.
  if (!processes_.IsAttached(*process)) {
    return InvalidArgument("it asks for something before it was welcomed");
  }
  switch (message.what_case()) {
    case wire::ToDaemon::kPushes:
      return exchanges_.OnPushes(*process, message.pushes());
    case wire::ToDaemon::kCall:
      return calls_.OnCall(process, std::move(*message.mutable_call()));
    case wire::ToDaemon::kTaken:
      calls_.OnTaken(*process, message.taken());
      return absl::OkStatus();
    case wire::ToDaemon::kReport:
      return OnReport(message.report());
    case wire::ToDaemon::kAlive:
      return absl::OkStatus();
    case wire::ToDaemon::kRetired:
      return exchanges_.OnRetired(*process, message.retired());
    default:
      return InvalidArgument("a message of no known kind");
  }
}

absl::Status HostServer::OnReport(const bandoneon::control::Report& report) {
  BDN_RETURN_IF_ERROR(CheckReportName(report.name()));
  // Nobody waits for an answer: if the job is over, or has too many names, the value is dropped.
  (void)worker_->ReportValue({report.name(), report.step(), report.value()});
  return absl::OkStatus();
}

void HostServer::OnGone(const HostProcessRef& process, const absl::Status& why) {
  const std::string reason = processes_.OnGone(process, why);
  if (processes_.IsAttached(*process)) calls_.OnGone(*process);
  GiveUpHost(reason);
}

void HostServer::OnTime() {
  const std::string left = calls_.OnTime();
  const std::string missed = processes_.OnTime();
  AbortJob(left);
  GiveUpHost(left.empty() ? missed : "");
}

}  // namespace bdn
