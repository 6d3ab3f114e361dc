#include "worker/host/host_processes.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

// The time in which processes may hear that the job has failed, before their daemon ends.
constexpr absl::Duration kTimeToHear = absl::Seconds(3);
constexpr absl::Duration kMostSleep = absl::Minutes(1);
constexpr size_t kMostConnections = 4096;
constexpr absl::Duration kAcceptBackoff = absl::Milliseconds(100);
// After so many connections of other users, none is accepted for a while: every user of the machine
// may connect to an abstract address, and hang up.
constexpr int kRefusalsBeforeRest = 16;
// The most processes that are told at the end why no daemon serves them.
constexpr int kMostToldAtEnd = 1024;

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

}  // namespace

// ---- Life

HostProcesses::HostProcesses(const Options& options, const Clock* clock,
                             std::shared_ptr<ShmArena> arena)
    : options_(options),
      clock_(clock),
      arena_(std::move(arena)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peer_log_(clock) {}

void HostProcesses::Start(HostListener* listener, const Worker* worker) {
  listener_ = listener;
  worker_ = worker;
  MutexLock lock(&mu_);
  attach_deadline_ = clock_->Now() + options_.attach_timeout;
}

void HostProcesses::Adopt(FileDescriptor socket) {
  MutexLock lock(&mu_);
  Add(std::move(socket));
  Wake();
}

bool HostProcesses::Fail(const absl::Status& status) {
  std::vector<std::shared_ptr<HostChannel>> told;
  {
    MutexLock lock(&mu_);
    if (!failed_.ok()) return false;
    failed_ = status;
    is_ending_ = true;
    failed_at_ = clock_->Now();
    for (const HostProcessRef& process : connected_) {
      // Others are strangers, or hear it in answer to their hello.
      if (process->said_hello) told.push_back(process->channel);
    }
    changed_.SignalAll();
  }
  wire::ToProcess message;
  Write(status, message.mutable_failed());
  for (const auto& channel : told) channel->Send(message);
  Wake();
  return true;
}

void HostProcesses::TellPresence(const Presence& presence, int candidates) {
  std::vector<std::shared_ptr<HostChannel>> told;
  {
    MutexLock lock(&mu_);
    for (const HostProcessRef& process : attached_) {
      if (!process->is_gone) told.push_back(process->channel);
    }
  }
  wire::ToProcess message;
  Write(presence, message.mutable_presence());
  message.mutable_presence()->set_candidates(static_cast<uint32_t>(candidates));
  for (const auto& channel : told) channel->Send(message);
  if (!told.empty()) Wake();
}

void HostProcesses::SetAllLeft() {
  MutexLock lock(&mu_);
  for (const HostProcessRef& process : attached_) process->has_left = true;
  all_left_ = true;
  is_ending_ = true;
  changed_.SignalAll();
}

absl::Status HostProcesses::Wait() {
  MutexLock lock(&mu_);
  for (;;) {
    const bool is_alone = connected_.empty();
    if (all_left_ && is_alone) return absl::OkStatus();
    const absl::Time until = failed_at_ + kTimeToHear;
    // Processes that were told close their connections; a process that does not read delays the end
    // by a few seconds only.
    if (!failed_.ok() && (is_alone || clock_->Now() >= until)) return failed_;
    if (is_closed_) return Cancelled("the host's daemon is being closed");
    clock_->WaitUntil(&changed_, &mu_, failed_.ok() ? absl::InfiniteFuture() : until);
  }
}

void HostProcesses::Close() {
  {
    MutexLock lock(&mu_);
    is_closed_ = true;
    changed_.SignalAll();
  }
  Wake();
}

void HostProcesses::Clear() {
  MutexLock lock(&mu_);
  connected_.clear();
  attached_.clear();
}

void HostProcesses::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void HostProcesses::Refuse(HostListener* listener, const absl::Status& why) {
  for (int i = 0; i < kMostToldAtEnd; ++i) {
    absl::StatusOr<FileDescriptor> socket = listener->Accept();
    if (absl::IsPermissionDenied(socket.status())) continue;  // another user's
    if (!socket.ok() || !socket->is_open()) return;
    HostChannel channel(*std::move(socket), std::make_shared<ShmArena>(), EncodeSegmentToProcess);
    (void)Refusal(&channel, why);
  }
}

// ---- What is known of them

std::vector<HostProcessRef> HostProcesses::attached() const {
  MutexLock lock(&mu_);
  return attached_;
}

std::shared_ptr<const Codec> HostProcesses::codec() const {
  MutexLock lock(&mu_);
  return codec_;
}

std::string HostProcesses::NameOf(const HostProcess& process) const {
  return absl::StrFormat("worker %d (process %d, local rank %d)",
                         worker_->rank() + process.local_rank, process.channel->peer_pid(),
                         process.local_rank);
}

bool HostProcesses::IsGone(const HostProcess& process) const {
  MutexLock lock(&mu_);
  return process.is_gone;
}

bool HostProcesses::IsAttached(const HostProcess& process) const {
  MutexLock lock(&mu_);
  const int rank = process.local_rank;
  return rank >= 0 && !attached_.empty() && attached_[rank].get() == &process;
}

void HostProcesses::Send(const HostProcess& process, const wire::ToProcess& message) {
  process.channel->Send(message);
  if (process.channel->has_waiting()) Wake();
}

// ---- The polling thread

bool HostProcesses::Poll(absl::Time next, std::vector<Ready>* ready) {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  std::vector<HostProcessRef> processes;
  bool takes_more;
  {
    MutexLock lock(&mu_);
    if (is_closed_) return false;
    // A process that connects while the job ends stays in the listener's queue, for the daemon's
    // next job.
    takes_more = listener_ != nullptr && !is_ending_;
    processes = connected_;
    // Nothing is due for a failed job: Wait ends it.
    next = failed_.ok() ? std::min(next, NextTime()) : absl::InfiniteFuture();
  }
  if (takes_more && clock_->Now() < accepts_at_) {
    takes_more = false;
    next = std::min(next, accepts_at_);
  }
  fds.push_back({takes_more ? listener_->fd() : -1, POLLIN, 0});
  for (const HostProcessRef& process : processes) {
    const short writable = process->channel->has_waiting() ? POLLOUT : 0;
    fds.push_back({process->channel->socket(), static_cast<short>(POLLIN | writable), 0});
    // The process's own end is watched, too: a child that it has forked may keep the socket open.
    fds.push_back({process->pidfd.get(), POLLIN, 0});
  }
  // At most a minute, so that the number fits, and rounded up, so that poll does not return just
  // before the deadline.
  const absl::Duration left = std::clamp(next - clock_->Now(), absl::ZeroDuration(), kMostSleep);
  const bool waits_for_ever = next == absl::InfiniteFuture();
  const int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
  (void)poll(fds.data(), fds.size(), waits_for_ever ? -1 : milliseconds);
  uint64_t woken;
  (void)!read(wake_.get(), &woken, sizeof(woken));
  NotePause();
  for (size_t i = 0; i < processes.size(); ++i) {
    const HostProcessRef& process = processes[i];
    const short of_socket = fds[2 + 2 * i].revents;
    if ((of_socket & POLLOUT) != 0 && !process->channel->Flush()) {
      ready->push_back({process, false, Unavailable("it takes no messages")});
    } else if (of_socket != 0) {
      ready->push_back({process, true, {}});  // its last messages come before its end
    } else if (fds[3 + 2 * i].revents != 0) {
      ready->push_back({process, true, Unavailable("the process has ended")});
    }
  }
  somebody_connects_ = fds[1].revents != 0;
  return true;
}

// A process that comes when the job is about to end waits for the next one.
void HostProcesses::Accept() {
  {
    MutexLock lock(&mu_);
    if (!somebody_connects_ || is_ending_) return;
  }
  absl::StatusOr<FileDescriptor> socket = listener_->Accept();
  if (!socket.ok()) {
    // Without descriptors poll would return at once again, because the connection still waits; and
    // strangers could keep this thread busy by connecting. A rest prevents both.
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

void HostProcesses::Add(FileDescriptor socket) {
  if (connected_.size() >= kMostConnections) return;  // the connection is closed
  auto process = std::make_shared<HostProcess>(
      std::make_shared<HostChannel>(std::move(socket), arena_, EncodeSegmentToProcess));
  process->pidfd = OpenPidfd(process->channel->peer_pid());
  connected_.push_back(std::move(process));
}

void HostProcesses::Heard(const HostProcessRef& process) {
  MutexLock lock(&mu_);
  process->lease.Heard(clock_->Now());
}

// ---- Attaching

absl::Status HostProcesses::CheckHello(const wire::Hello& hello) {
  // The version first: the other fields mean nothing between two versions.
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
  for (const HostProcessRef& other : connected_) {
    // All processes must agree, because one codec decodes their payloads.
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

absl::Status HostProcesses::OnHello(const HostProcessRef& process, const wire::Hello& hello) {
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
  const auto come = std::count_if(connected_.begin(), connected_.end(),
                                  [](const HostProcessRef& one) { return one->said_hello; });
  LogDebug("process %d has come, of local rank %d: %d of %d", process->channel->peer_pid(),
           process->local_rank, come, options_.processes);
  // None is welcomed before the last one has come: ranks of processes without a wish are known only
  // then.
  if (come == options_.processes) WelcomeAll();
  return absl::OkStatus();
}

void HostProcesses::WelcomeAll() {
  attached_.resize(options_.processes);
  std::vector<HostProcessRef> of_any_rank;
  for (const HostProcessRef& process : connected_) {
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
  // Leases begin for all at once, with the welcome: before that, a process only waits.
  signs_.emplace(job.heartbeat_interval, job.lease_timeout, now);
  for (int rank = 0; rank < options_.processes; ++rank) {
    if (attached_[rank] == nullptr) attached_[rank] = *next++;
    attached_[rank]->local_rank = rank;
    wire::ToProcess message;
    wire::Welcome* welcome = message.mutable_welcome();
    welcome->set_rank(worker_->rank() + rank);
    welcome->set_size(static_cast<uint32_t>(worker_->joined_size()));
    // What the worker hears from now on is told after this message, because mu_ is held.
    const Standing standing = worker_->standing();
    Write(worker_->presence(), welcome->mutable_presence());
    welcome->mutable_presence()->set_candidates(static_cast<uint32_t>(standing.num_candidates));
    welcome->set_is_candidate(standing.is_candidate);
    welcome->mutable_processes()->Add(worker_->processes().begin(), worker_->processes().end());
    welcome->set_local_rank(static_cast<uint32_t>(rank));
    welcome->set_local_size(static_cast<uint32_t>(options_.processes));
    welcome->set_run_seed(worker_->run_seed());
    welcome->set_heartbeat_ms(absl::ToInt64Milliseconds(job.heartbeat_interval));
    welcome->set_lease_ms(absl::ToInt64Milliseconds(job.lease_timeout));
    welcome->set_may_lose_hosts(job.MayHaveVacantRanks());
    attached_[rank]->lease.Begin(job.lease_timeout, now);
    attached_[rank]->channel->Send(message);
  }
  LogInfo("all %d processes of this host have attached", options_.processes);
}

std::string HostProcesses::OnGone(const HostProcessRef& process, const absl::Status& why) {
  std::string reason;
  {
    MutexLock lock(&mu_);
    if (process->is_gone) return "";
    process->is_gone = true;
    std::erase(connected_, process);
    // A process that ends before the welcome may be started again; one that ends after it leaves
    // the others without its pushes.
    const bool is_missed = !attached_.empty() && process->said_hello && !process->has_left;
    is_ending_ |= is_missed;
    if (is_missed && failed_.ok()) {
      reason =
          absl::StrFormat("%s ended without leaving the job: %s", NameOf(*process), why.message());
    }
    changed_.SignalAll();
  }
  if (!absl::IsUnavailable(why)) peer_log_.Warning("a process was cut off: %s", why.message());
  return reason;
}

std::vector<int> HostProcesses::NotAttached() const {
  std::vector<bool> is_taken(options_.processes);
  size_t missing = options_.processes;
  for (const HostProcessRef& process : connected_) {
    if (!process->said_hello) continue;
    --missing;
    if (process->local_rank >= 0) is_taken[process->local_rank] = true;
  }
  std::vector<int> free;
  for (int rank = 0; rank < options_.processes; ++rank) {
    if (!is_taken[rank]) free.push_back(rank);
  }
  // Processes without a wished rank will get the lowest free ones, so the highest remain.
  free.erase(free.begin(), free.end() - static_cast<std::ptrdiff_t>(missing));
  return free;
}

absl::Time HostProcesses::NextTime() const {
  if (!failed_.ok()) return absl::InfiniteFuture();
  absl::Time next = attached_.empty() ? attach_deadline_ : absl::InfiniteFuture();
  if (!signs_.has_value() || all_left_) return next;
  next = std::min(next, signs_->NextTime());
  for (const HostProcessRef& process : connected_) next = std::min(next, process->lease.end());
  return next;
}

void HostProcesses::NotePause() {
  MutexLock lock(&mu_);
  if (!signs_.has_value()) return;
  const absl::Duration pause = signs_->OnAwake(clock_->Now());
  if (pause <= absl::ZeroDuration()) return;
  LogWarning("this daemon was held up for %.1f s: its processes' leases have that time again",
             absl::ToDoubleSeconds(pause));
  for (const HostProcessRef& process : connected_) process->lease.WasHeldUp(pause);
}

std::string HostProcesses::KeepLeases() {
  const absl::Time now = clock_->Now();
  std::vector<std::shared_ptr<HostChannel>> told;
  std::string reason;
  {
    MutexLock lock(&mu_);
    if (!signs_.has_value() || all_left_ || !failed_.ok()) return "";
    const bool says_so = signs_->IsDue(now);
    for (const HostProcessRef& process : connected_) {
      // A process that has left may end whenever it likes.
      if (process->local_rank < 0 || process->has_left) continue;
      if (says_so) told.push_back(process->channel);
      if (!process->lease.IsOver(now) || !reason.empty()) continue;
      reason = absl::StrFormat("%s stopped answering %.1f s ago", NameOf(*process),
                               absl::ToDoubleSeconds(process->lease.SilentFor(now)));
      process->lease.End();  // it is reported once
    }
  }
  wire::ToProcess message;
  message.mutable_alive();
  // Without the lock, so that no other thread waits for the sockets.
  for (const auto& channel : told) channel->Send(message);
  return reason;
}

std::string HostProcesses::CheckAttached() {
  MutexLock lock(&mu_);
  if (!failed_.ok() || !attached_.empty() || clock_->Now() < attach_deadline_) return "";
  const std::string reason =
      absl::StrFormat("of the %d processes of this host, local rank %s did not attach",
                      options_.processes, absl::StrJoin(NotAttached(), ", "));
  attach_deadline_ = absl::InfiniteFuture();
  for (const HostProcessRef& process : connected_) {
    (void)Refusal(process->channel.get(), DeadlineExceeded("%s", reason));
  }
  return reason;
}

std::string HostProcesses::OnTime() {
  const std::string missing = CheckAttached();
  const std::string silent = KeepLeases();
  return missing.empty() ? silent : missing;
}

}  // namespace bdn
