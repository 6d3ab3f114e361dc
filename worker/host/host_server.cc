#include "worker/host/host_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "proto/host.pb.h"
#include "worker/error_fields.h"
#include "worker/host/host_messages.h"
#include "worker/pipeline/chunked_payload.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

// For processes to hear that the job has failed, before their daemon goes.
constexpr absl::Duration kTimeToHear = absl::Seconds(3);
constexpr absl::Duration kMostSleep = absl::Minutes(1);
constexpr size_t kMostConnections = 4096;
constexpr absl::Duration kAcceptBackoff = absl::Milliseconds(100);
// After so many other users' connections none is taken for a while: anybody on the host may connect to an
// address of the abstract kind, and hang up.
constexpr int kRefusalsBeforeRest = 16;
// Who are told at the end why nobody serves them.
constexpr int kMostToldAtEnd = 1024;
constexpr uint64_t kNoLimit = ~uint64_t{0};

FileDescriptor OpenPidfd(int pid) {
  if (pid <= 0) return {};
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

absl::Status Refusal(HostChannel* channel, const absl::Status& why) {
  wire::ToProcess message;
  Write(why, message.mutable_welcome()->mutable_refused());
  channel->Send(message);
  return why;
}

DType SumDType(DType dtype) { return dtype == DType::kFloat64 ? dtype : DType::kFloat32; }

}  // namespace

// ---- Life

HostServer::HostServer(const Options& options, const Clock* clock)
    : options_(options),
      clock_(clock),
      arena_(std::make_shared<ShmArena>(kNoLimit)),
      pool_(ArenaOrHeap(arena_)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peer_log_(clock) {
  arena_->Enable();
}

HostServer::~HostServer() { Close(); }

HostServer::HostTensor::~HostTensor() {
  if (result.data != nullptr) {
    arena->Free(static_cast<std::byte*>(result.data), result.n * DTypeSize(result.dtype));
  }
  if (left_out != nullptr) arena->Free(left_out, elements * sizeof(float));
}

void HostServer::Start(HostListener* listener, Worker* worker, const Registry* telemetry) {
  listener_ = listener;
  worker_ = worker;
  telemetry_ = telemetry;
  attach_deadline_ = clock_->Now() + options_.attach_timeout;
  {
    MutexLock lock(&mu_);
    rounds_.emplace(options_.processes, worker->rank());
    gather_.emplace(options_.processes, worker->rank());
  }
  poller_ = StartThread("bdn-host", [this] { Poll(); });
}

void HostServer::Adopt(FileDescriptor socket) {
  MutexLock lock(&mu_);
  Add(std::move(socket));
  Wake();
}

absl::Status HostServer::Wait() {
  MutexLock lock(&mu_);
  for (;;) {
    const bool is_alone = processes_.empty();
    if (all_left_ && is_alone) return absl::OkStatus();
    const absl::Time until = failed_at_ + kTimeToHear;
    if (!failed_.ok() && (is_alone || clock_->Now() >= until)) return failed_;
    if (is_closed_) return Cancelled("the host's daemon is being closed");
    clock_->WaitUntil(&changed_, &mu_, failed_.ok() ? absl::InfiniteFuture() : until);
  }
}

void HostServer::Close() {
  {
    MutexLock lock(&mu_);
    is_closed_ = true;
    changed_.SignalAll();
  }
  Wake();
  if (poller_.joinable()) poller_.join();
  threads_.Join();
  MutexLock lock(&mu_);
  processes_.clear();  // whose sockets end
  attached_.clear();
  gathered_.clear();
}

void HostServer::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void HostServer::Refuse(HostListener* listener, const absl::Status& why) {
  for (int i = 0; i < kMostToldAtEnd; ++i) {
    absl::StatusOr<FileDescriptor> socket = listener->Accept();
    if (absl::IsPermissionDenied(socket.status())) continue;  // another user's
    if (!socket.ok() || !socket->is_open()) return;
    HostChannel channel(*std::move(socket), std::make_shared<ShmArena>(), EncodeSegmentToProcess);
    (void)Refusal(&channel, why);
  }
}

void HostServer::OnFailure(const absl::Status& status) {
  std::vector<HostRound> rounds;
  std::vector<HostGather::Ended> ended;
  std::vector<std::shared_ptr<HostChannel>> told;
  {
    MutexLock lock(&mu_);
    if (!failed_.ok()) return;
    failed_ = status;
    is_ending_ = true;
    failed_at_ = clock_->Now();
    if (rounds_.has_value()) rounds = rounds_->TakeAll();
    if (gather_.has_value()) ended = gather_->TakeAll(status);
    for (const ProcessRef& process : processes_) {
      if (process->said_hello) told.push_back(process->channel);
    }
    changed_.SignalAll();
  }
  wire::ToProcess message;
  Write(status, message.mutable_failed());
  for (const auto& channel : told) channel->Send(message);
  for (const HostRound& round : rounds) EndRound(round, status);
  EndGathered(ended);
  Wake();
}

void HostServer::AbortJob(const std::string& reason) {
  threads_.Run([this, reason] { (void)worker_->Abort(reason); });
}

std::string HostServer::NameOf(const Process& process) const {
  return absl::StrFormat("worker %d (process %d, local rank %d)",
                         worker_->rank() + process.local_rank, process.channel->peer_pid(),
                         process.local_rank);
}

// ---- The polling thread

void HostServer::Poll() {
  for (;;) {
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
    std::vector<ProcessRef> processes;
    absl::Time next;
    bool takes_more;
    {
      MutexLock lock(&mu_);
      if (is_closed_) return;
      takes_more = listener_ != nullptr && !is_ending_;
      processes = processes_;
      next = NextTime();
    }
    if (takes_more && clock_->Now() < accepts_at_) {
      takes_more = false;
      next = std::min(next, accepts_at_);
    }
    fds.push_back({takes_more ? listener_->fd() : -1, POLLIN, 0});
    for (const ProcessRef& process : processes) {
      const short writable = process->channel->has_waiting() ? POLLOUT : 0;
      fds.push_back({process->channel->socket(), static_cast<short>(POLLIN | writable), 0});
      fds.push_back({process->pidfd.get(), POLLIN, 0});
    }
    // A while at most, so that it fits, and past the deadline rather than before it.
    const absl::Duration left = std::clamp(next - clock_->Now(), absl::ZeroDuration(), kMostSleep);
    const bool waits_for_ever = next == absl::InfiniteFuture();
    const int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    (void)poll(fds.data(), fds.size(), waits_for_ever ? -1 : milliseconds);
    uint64_t woken;
    (void)!read(wake_.get(), &woken, sizeof(woken));
    NotePause();
    for (size_t i = 0; i < processes.size(); ++i) {
      const ProcessRef& process = processes[i];
      const short ready = fds[2 + 2 * i].revents;
      if ((ready & POLLOUT) != 0 && !process->channel->Flush()) {
        OnGone(process, Unavailable("it takes no messages"));
      } else if (ready != 0) {
        OnReadable(process);  // what it said before it went comes first
      } else if (fds[3 + 2 * i].revents != 0) {
        OnReadable(process);
        OnGone(process, Unavailable("the process has ended"));
      }
    }
    if (fds[1].revents != 0) Accept();
    OnTime();
  }
}

// Who comes when the job is about to end comes for the next.
void HostServer::Accept() {
  {
    MutexLock lock(&mu_);
    if (is_ending_) return;
  }
  absl::StatusOr<FileDescriptor> socket = listener_->Accept();
  if (!socket.ok()) {
    if (absl::IsResourceExhausted(socket.status()) || ++refusals_ >= kRefusalsBeforeRest) {
      accepts_at_ = clock_->Now() + kAcceptBackoff;
      refusals_ = 0;
    }
    return peer_log_.Warning("%s", socket.status().message());
  }
  if (!socket->is_open()) return;
  MutexLock lock(&mu_);
  Add(*std::move(socket));
}

void HostServer::Add(FileDescriptor socket) {
  if (processes_.size() >= kMostConnections) return;  // cut
  auto process = std::make_shared<Process>(
      std::make_shared<HostChannel>(std::move(socket), arena_, EncodeSegmentToProcess));
  process->pidfd = OpenPidfd(process->channel->peer_pid());
  processes_.push_back(std::move(process));
}

void HostServer::OnReadable(const ProcessRef& process) {
  for (;;) {
    if (process->is_gone) return;
    absl::StatusOr<std::optional<std::string>> bytes = process->channel->Receive();
    if (!bytes.ok()) return OnGone(process, bytes.status());
    if (!bytes->has_value()) return;
    {
      MutexLock lock(&mu_);
      process->lease.Heard(clock_->Now());
    }
    const absl::Status status = OnMessage(process, **bytes);
    if (!status.ok()) return OnGone(process, status);
  }
}

absl::Status HostServer::OnMessage(const ProcessRef& process, const std::string& bytes) {
  wire::ToDaemon message;
  if (!message.ParseFromString(bytes)) return InvalidArgument("a message that is none");
  if (message.has_hello()) return OnHello(process, message.hello());
  if (message.has_segment()) {
    return process->channel->AddSegment(message.segment().index(), message.segment().bytes());
  }
  {
    MutexLock lock(&mu_);
    if (attached_.empty()) return InvalidArgument("it asks for something before it was welcomed");
  }
  switch (message.what_case()) {
    case wire::ToDaemon::kPushes:
      return OnPushes(process, message.pushes());
    case wire::ToDaemon::kCall:
      return OnCall(process, std::move(*message.mutable_call()));
    case wire::ToDaemon::kTaken: {
      MutexLock lock(&mu_);
      process->answers.erase(message.taken());
      return absl::OkStatus();
    }
    case wire::ToDaemon::kReport:
      return OnReport(message.report());
    case wire::ToDaemon::kAlive:
      return absl::OkStatus();
    case wire::ToDaemon::kRetired:
      return OnRetired(process, message.retired());
    default:
      return InvalidArgument("a message of no known kind");
  }
}

absl::Status HostServer::OnRetired(const ProcessRef& process, const wire::Retired& retired) {
  std::vector<uint32_t> by_all;
  {
    MutexLock lock(&mu_);
    for (const uint32_t id : retired.tensors()) {
      const auto found = tensors_.find(id);
      if (found == tensors_.end()) {
        return InvalidArgument("it retired tensor %d, which was not declared", id);
      }
      std::set<int>& done_with = found->second->done_with;
      if (!done_with.insert(process->local_rank).second) {
        return InvalidArgument("it retired tensor %d twice", id);
      }
      if (done_with.size() == static_cast<size_t>(options_.processes)) by_all.push_back(id);
    }
  }
  Retire(by_all);
  return absl::OkStatus();
}

void HostServer::Retire(const std::vector<uint32_t>& tensors) {
  if (tensors.empty()) return;
  std::vector<HostRound> rounds;
  std::vector<std::shared_ptr<HostTensor>> gone;
  {
    MutexLock lock(&mu_);
    for (const uint32_t id : tensors) {
      auto tensor = tensors_.extract(id);
      if (tensor.empty()) continue;
      ids_.erase(tensor.mapped()->name);
      gone.push_back(std::move(tensor.mapped()));
      auto round = rounds_->Forget(id);
      if (round.has_value()) rounds.push_back(*std::move(round));
    }
  }
  for (const HostRound& round : rounds) EndRound(round, Cancelled("its tensor was retired"));
  const absl::Status status = worker_->Retire(tensors);
  if (!status.ok()) peer_log_.Warning("retiring tensors: %s", status.message());
}

absl::Status HostServer::OnReport(const bandoneon::control::Report& report) {
  BDN_RETURN_IF_ERROR(CheckReportName(report.name()));
  // Nobody waits for the answer: of a job that is over, or of a name too many, nothing is kept.
  (void)worker_->ReportValue({report.name(), report.step(), report.value()});
  return absl::OkStatus();
}

// ---- Attaching

absl::Status HostServer::CheckHello(const wire::Hello& hello) {
  if (hello.version() != kHostVersion) {
    return FailedPrecondition("this host's daemon speaks version %d, the process %d: use one build",
                              kHostVersion, hello.version());
  }
  if (!hello.job_id().empty() && hello.job_id() != options_.job_id) {
    return PermissionDenied("this daemon takes part in job '%s', the process in job '%s'",
                            options_.job_id, hello.job_id());
  }
  const int processes = options_.processes;
  if (!failed_.ok()) return failed_;
  if (!attached_.empty()) {
    return ResourceExhausted("all %d processes of this host have attached", processes);
  }
  if (hello.local_size() != 0 && hello.local_size() != static_cast<uint32_t>(processes)) {
    return InvalidArgument(
        "this host's daemon was started for %d processes, and there are to be %d", processes,
        hello.local_size());
  }
  if (hello.local_rank() < -1 || hello.local_rank() >= processes) {
    return InvalidArgument("local rank %d: this host has %d processes", hello.local_rank(),
                           processes);
  }
  if (!hello.codec().empty()) BDN_RETURN_IF_ERROR(ParseHostCodec(hello.codec()).status());
  for (const ProcessRef& other : processes_) {
    if (other->said_hello && other->codec_spec != hello.codec()) {
      return InvalidArgument("setting host is '%s' here and '%s' in process %d of this host",
                             hello.codec(), other->codec_spec, other->channel->peer_pid());
    }
    if (hello.local_rank() >= 0 && other->local_rank == hello.local_rank()) {
      return AlreadyExists("local rank %d is taken by process %d", hello.local_rank(),
                           other->channel->peer_pid());
    }
  }
  return absl::OkStatus();
}

absl::Status HostServer::OnHello(const ProcessRef& process, const wire::Hello& hello) {
  MutexLock lock(&mu_);
  if (process->said_hello) return InvalidArgument("it said hello twice");
  process->codec_spec = hello.codec();
  const absl::Status status = CheckHello(hello);
  if (!status.ok()) return Refusal(process->channel.get(), status);
  if (!process->codec_spec.empty() && codec_ == nullptr) {
    codec_ = *ParseHostCodec(process->codec_spec);
  }
  process->said_hello = true;
  process->local_rank = hello.local_rank();
  const auto come = std::count_if(processes_.begin(), processes_.end(),
                                  [](const ProcessRef& one) { return one->said_hello; });
  LogDebug("process %d has come, of local rank %d: %d of %d", process->channel->peer_pid(),
           process->local_rank, come, options_.processes);
  if (come == options_.processes) WelcomeAll();
  return absl::OkStatus();
}

void HostServer::WelcomeAll() {
  attached_.resize(options_.processes);
  std::vector<ProcessRef> of_any_rank;
  for (const ProcessRef& process : processes_) {
    if (!process->said_hello) continue;
    if (process->local_rank >= 0) {
      attached_[process->local_rank] = process;
    } else {
      of_any_rank.push_back(process);
    }
  }
  auto next = of_any_rank.begin();
  const JobConfig& job = worker_->config();
  const absl::Time now = clock_->Now();
  signs_.emplace(job.heartbeat_interval, job.lease_timeout, now);
  for (int rank = 0; rank < options_.processes; ++rank) {
    if (attached_[rank] == nullptr) attached_[rank] = *next++;
    attached_[rank]->local_rank = rank;
    wire::ToProcess message;
    wire::Welcome* welcome = message.mutable_welcome();
    welcome->set_rank(worker_->rank() + rank);
    welcome->set_size(static_cast<uint32_t>(worker_->size()));
    welcome->set_local_rank(static_cast<uint32_t>(rank));
    welcome->set_local_size(static_cast<uint32_t>(options_.processes));
    welcome->set_run_seed(worker_->run_seed());
    welcome->set_heartbeat_ms(absl::ToInt64Milliseconds(job.heartbeat_interval));
    welcome->set_lease_ms(absl::ToInt64Milliseconds(job.lease_timeout));
    attached_[rank]->lease.Begin(job.lease_timeout, now);
    attached_[rank]->channel->Send(message);
  }
  LogInfo("all %d processes of this host have attached", options_.processes);
}

void HostServer::OnGone(const ProcessRef& process, const absl::Status& why) {
  std::string reason;
  {
    MutexLock lock(&mu_);
    if (process->is_gone) return;
    process->is_gone = true;
    std::erase(processes_, process);
    const bool is_missed = !attached_.empty() && process->said_hello && !process->has_left;
    is_ending_ |= is_missed;
    if (is_missed && failed_.ok()) {
      reason =
          absl::StrFormat("%s ended without leaving the job: %s", NameOf(*process), why.message());
    }
    changed_.SignalAll();
  }
  if (!absl::IsUnavailable(why)) peer_log_.Warning("a process was cut off: %s", why.message());
  if (!reason.empty()) AbortJob(reason);
}

std::vector<int> HostServer::NotAttached() const {
  std::vector<bool> is_taken(options_.processes);
  size_t missing = options_.processes;
  for (const ProcessRef& process : processes_) {
    if (!process->said_hello) continue;
    --missing;
    if (process->local_rank >= 0) is_taken[process->local_rank] = true;
  }
  std::vector<int> free;
  for (int rank = 0; rank < options_.processes; ++rank) {
    if (!is_taken[rank]) free.push_back(rank);
  }
  // Those of any rank will have the first of them.
  free.erase(free.begin(), free.end() - static_cast<std::ptrdiff_t>(missing));
  return free;
}

absl::Time HostServer::NextTime() const {
  if (!failed_.ok()) return absl::InfiniteFuture();
  absl::Time next = gather_->NextDeadline();
  if (attached_.empty()) next = std::min(next, attach_deadline_);
  if (!signs_.has_value() || all_left_) return next;
  next = std::min(next, signs_->NextTime());
  for (const ProcessRef& process : processes_) next = std::min(next, process->lease.end());
  return next;
}

void HostServer::NotePause() {
  MutexLock lock(&mu_);
  if (!signs_.has_value()) return;
  const absl::Duration pause = signs_->OnAwake(clock_->Now());
  if (pause <= absl::ZeroDuration()) return;
  LogWarning("this daemon was held up for %.1f s: its processes' leases have that time again",
             absl::ToDoubleSeconds(pause));
  for (const ProcessRef& process : processes_) process->lease.WasHeldUp(pause);
}

std::string HostServer::KeepLeases() {
  const absl::Time now = clock_->Now();
  std::vector<std::shared_ptr<HostChannel>> told;
  std::string reason;
  {
    MutexLock lock(&mu_);
    if (!signs_.has_value() || all_left_ || !failed_.ok()) return "";
    const bool says_so = signs_->IsDue(now);
    for (const ProcessRef& process : processes_) {
      if (process->local_rank < 0 || process->has_left) continue;
      if (says_so) told.push_back(process->channel);
      if (!process->lease.IsOver(now) || !reason.empty()) continue;
      reason = absl::StrFormat("%s stopped answering %.1f s ago", NameOf(*process),
                               absl::ToDoubleSeconds(process->lease.SilentFor(now)));
      process->lease.End();  // it is said once
    }
  }
  wire::ToProcess message;
  message.mutable_alive();
  for (const auto& channel : told) channel->Send(message);
  return reason;
}

void HostServer::OnTime() {
  const absl::Time now = clock_->Now();
  std::vector<HostGather::Ended> ended;
  std::string reason;
  {
    MutexLock lock(&mu_);
    if (!failed_.ok()) return;
    ended = gather_->Expire(now);
    if (attached_.empty() && now >= attach_deadline_) {
      reason = absl::StrFormat("of the %d processes of this host, local rank %s did not attach",
                               options_.processes, absl::StrJoin(NotAttached(), ", "));
      attach_deadline_ = absl::InfiniteFuture();
      for (const ProcessRef& process : processes_) {
        (void)Refusal(process->channel.get(), DeadlineExceeded("%s", reason));
      }
    }
  }
  for (const HostGather::Ended& one : ended) {
    // It counts as leaving, and the others can do nothing without it.
    if (one.was_leaving) reason = std::string(one.status.message());
  }
  EndGathered(ended);
  const std::string silent = KeepLeases();
  if (reason.empty()) reason = silent;
  if (!reason.empty()) AbortJob(reason);
}

// ---- Rounds

absl::Status HostServer::OnPushes(const ProcessRef& process, const wire::Pushes& pushes) {
  std::vector<HostRound> complete;
  absl::Status wrong;
  for (const wire::Push& message : pushes.pushes()) {
    HostPush push{.ticket = message.ticket(),
                  .step = message.step(),
                  .absent = message.absent(),
                  .priority = message.priority(),
                  .weight = message.weight(),
                  .loss_scale = message.loss_scale(),
                  .learning_rate = message.learning_rate(),
                  .program_steps = message.program_steps(),
                  .wants_left_out = message.left_out()};
    MutexLock lock(&mu_);
    const auto tensor = tensors_.find(message.tensor());
    if (tensor == tensors_.end() || tensor->second->done_with.contains(process->local_rank)) {
      if (message.tensor() >= tensors_end_) {
        return InvalidArgument("it pushed tensor %d, which was not declared", message.tensor());
      }
      // By one of its threads while another retired it.
      wire::ToProcess answer;
      answer.mutable_ended()->set_ticket(message.ticket());
      Write(Cancelled("its tensor was retired"), answer.mutable_ended()->mutable_status());
      process->channel->Send(answer);
      continue;
    }
    const HostTensor& facts = *tensor->second;
    if (!push.absent) {
      if (message.encoded() && codec_ == nullptr) return InvalidArgument("it has no codec");
      const size_t size = message.encoded() ? ChunkedBytes(*codec_, facts.elements)
                                            : facts.elements * DTypeSize(facts.dtype);
      BDN_ASSIGN_OR_RETURN(auto bytes, process->channel->Resolve(Read(message.data()), size));
      if (message.encoded()) {
        push.codec = codec_.get();
        push.payload = bytes.span;
      } else {
        push.data = {bytes.span.data(), facts.dtype, facts.elements};
      }
      push.memory = std::move(bytes.memory);
    }
    absl::StatusOr<std::optional<HostRound>> round =
        failed_.ok()
            ? rounds_->Add(process->local_rank, message.tensor(), facts.name, std::move(push))
            : failed_;
    if (!round.ok()) {
      wire::ToProcess answer;
      answer.mutable_ended()->set_ticket(message.ticket());
      Write(round.status(), answer.mutable_ended()->mutable_status());
      process->channel->Send(answer);
      if (absl::IsInvalidArgument(round.status())) wrong = round.status();
    } else if (round->has_value()) {
      complete.push_back(**std::move(round));
    }
  }
  StartRounds(std::move(complete));
  // Its processes would wait for one another for ever.
  if (!wrong.ok()) AbortJob(std::string(wrong.message()));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<HostServer::HostTensor>> HostServer::FillRequest(
    const HostRound& round, PushRequest* request) {
  BDN_RETURN_IF_ERROR(Find(round.tensor).status());
  const std::shared_ptr<HostTensor> shared = tensors_.at(round.tensor);
  HostTensor& tensor = *shared;
  *request = round.Request();
  tensor.set_by.clear();
  request->data = tensor.result;
  if (!round.wants_left_out()) return shared;
  const size_t bytes = tensor.elements * sizeof(float);
  if (tensor.left_out == nullptr) tensor.left_out = arena_->Allocate(bytes);
  if (tensor.left_out == nullptr) {
    return ResourceExhausted(
        "tensor '%s': %d bytes of shared memory for what its codec leaves out are not to be had",
        tensor.name, bytes);
  }
  request->left_out = reinterpret_cast<float*>(tensor.left_out);
  return shared;
}

void HostServer::StartRounds(std::vector<HostRound> rounds) {
  std::vector<std::shared_ptr<const HostRound>> shared;
  std::vector<PushRequest> requests;
  absl::Status status;
  for (HostRound& one : rounds) {
    const auto round = std::make_shared<const HostRound>(std::move(one));
    const absl::Status agrees = round->CheckAgrees(NameOf(round->tensor), worker_->rank());
    if (!agrees.ok()) {
      Refuse(*round, agrees);
      continue;
    }
    shared.push_back(round);
    if (!status.ok()) continue;
    PushRequest request;
    MutexLock lock(&mu_);
    const auto tensor = FillRequest(*round, &request);
    status = tensor.status();
    if (!status.ok()) continue;
    // Its memory is there until then, though it may be retired.
    request.done = [this, round, tensor = *tensor](TicketId, const auto& result) {
      EndRound(*round, result);
    };
    requests.push_back(std::move(request));
  }
  size_t next = 0;
  while (next < requests.size()) {
    std::vector<TicketId> tickets;
    const absl::Status pushed = worker_->PushPullAll(std::span(requests).subspan(next), &tickets);
    {
      MutexLock lock(&mu_);
      for (const TicketId ticket : tickets) {
        const auto tensor = Find(shared[next++]->tensor);
        if (tensor.ok()) (*tensor)->ticket = ticket;
      }
    }
    if (pushed.ok()) continue;
    if (!absl::IsInvalidArgument(pushed) && !absl::IsFailedPrecondition(pushed)) {
      status = pushed;
      break;
    }
    const HostRound& round = *shared[next++];
    const absl::Status why(pushed.code(), absl::StrFormat("%s (%s)", pushed.message(),
                                                          round.Describe(worker_->rank())));
    Refuse(round,
           AttachFields(why, {.tensor = NameOf(round.tensor), .step = std::to_string(round.step)}));
  }
  if (status.ok()) return;
  for (; next < shared.size(); ++next) EndRound(*shared[next], status);
  AbortJob(std::string(status.message()));
}

void HostServer::Refuse(const HostRound& round, const absl::Status& why) {
  bool undone;
  {
    MutexLock lock(&mu_);
    undone = rounds_->TakeBack(round);
  }
  EndRound(round, why, undone);
  if (!undone) AbortJob(std::string(why.message()));
}

void HostServer::EndRound(const HostRound& round, const absl::StatusOr<PushResult>& result,
                          bool undone) {
  std::vector<ProcessRef> attached;
  std::byte* left_out = nullptr;
  uint64_t bytes = 0;
  {
    MutexLock lock(&mu_);
    if (attached_.empty()) return;  // closed
    attached = attached_;
    const auto tensor = Find(round.tensor);
    if (tensor.ok()) {  // else nobody wants it: it was retired
      left_out = (*tensor)->left_out;
      bytes = (*tensor)->elements * sizeof(float);
    }
  }
  for (size_t i = 0; i < round.pushes.size(); ++i) {
    if (!round.pushes[i].has_value()) continue;  // of one that is not complete
    wire::ToProcess message;
    wire::Ended* ended = message.mutable_ended();
    ended->set_ticket(round.pushes[i]->ticket);
    Write(result.status(), ended->mutable_status());
    ended->set_undone(undone);
    const bool has_left_out = result.ok() && round.pushes[i]->wants_left_out && left_out != nullptr;
    if (result.ok()) {
      ended->set_absent(result->absent);
      ended->set_nonfinite(result->nonfinite);
    }
    if (has_left_out) {
      Write(*attached[i]->channel->Find({left_out, bytes}), ended->mutable_left_out());
      ended->set_left_out_share(round.ShareOf(static_cast<int>(i)));
    }
    attached[i]->channel->Send(message);
    if (attached[i]->channel->has_waiting()) Wake();
  }
}

absl::Status HostServer::DescribePush(uint32_t id) const {
  TicketId ticket;
  {
    MutexLock lock(&mu_);
    const auto found = tensors_.find(id);
    if (found == tensors_.end()) return NotFound("no tensor %d was declared", id);
    if (rounds_->IsOpen(id)) {
      return WithFields(DeadlineExceeded("still in flight"),
                        {.tensor = found->second->name,
                         .step = std::to_string(rounds_->step(id) + 1),
                         .stage = "assemble",
                         .waiting_for = WorkerNames(rounds_->Missing(id), worker_->rank())});
    }
    ticket = found->second->ticket;
  }
  const absl::Status described = worker_->DescribeWait(ticket);
  return absl::IsNotFound(described) ? DeadlineExceeded("still in flight") : described;
}

// ---- What is declared

absl::Status HostServer::AddTensors(std::span<const TensorDeclaration> tensors,
                                    std::span<const uint32_t> ids) {
  MutexLock lock(&mu_);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorDeclaration& declared = tensors[i];
    if (tensors_.contains(ids[i])) continue;
    tensors_end_ = std::max(tensors_end_, ids[i] + 1);
    const size_t bytes = declared.elements * DTypeSize(SumDType(declared.dtype));
    std::byte* const result = arena_->Allocate(bytes);
    if (result == nullptr) {
      return ResourceExhausted(
          "tensor '%s': %d bytes of shared memory for the sum of this host are not to be had; the "
          "daemon needs the size of the model in float32: give it more memory",
          declared.name, bytes);
    }
    std::shared_ptr<HostTensor>& tensor = tensors_[ids[i]];
    tensor = std::make_shared<HostTensor>(arena_);
    ids_[declared.name] = ids[i];
    tensor->name = declared.name;
    tensor->dtype = declared.dtype;
    tensor->elements = declared.elements;
    tensor->result = {result, SumDType(declared.dtype), declared.elements};
  }
  return absl::OkStatus();
}

}  // namespace bdn
