#include "worker/host/daemon_channel.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/float_guard.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/membership.h"
#include "common/cluster/worker_names.h"
#include "proto/host.pb.h"
#include "worker/host/host_messages.h"

namespace bdn {
namespace {

namespace wire = bandoneon::host;

// The most processes of a job: it has at most 4096 workers.
constexpr uint32_t kMostRanks = 4096 * kMostProcesses;

}  // namespace

// ---- Life

DaemonChannel::DaemonChannel(const Options& options, FileDescriptor socket,
                             std::shared_ptr<ShmArena> arena, const Clock* clock)
    : options_(options),
      clock_(clock),
      channel_(std::move(socket), std::move(arena), EncodeSegmentToDaemon),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

DaemonChannel::~DaemonChannel() {
  Close();
  Join();
}

absl::Status DaemonChannel::Attach(Handlers handlers) {
  // Before the thread starts, which uses them.
  handlers_ = std::move(handlers);
  wire::ToDaemon message;
  wire::Hello* hello = message.mutable_hello();
  hello->set_version(kHostVersion);
  hello->set_job_id(options_.job_id);
  hello->set_local_rank(options_.local_rank);
  hello->set_local_size(static_cast<uint32_t>(options_.local_size));
  if (options_.codec != nullptr) hello->set_codec(options_.codec->spec());
  if (!channel_.Send(message)) return Unavailable("the daemon at %s has ended", options_.address);
  receiver_ = StartThread("bdn-attached", [this] { Receive(); });
  const absl::Time deadline = clock_->Now() + options_.attach_timeout;
  MutexLock lock(&mu_);
  while (!is_welcome_ && over_.ok() && clock_->Now() < deadline) {
    clock_->WaitUntil(&changed_, &mu_, deadline);
  }
  if (!over_.ok()) return Annotate(over_, "attaching to " + options_.address);
  if (is_welcome_) return absl::OkStatus();
  return DeadlineExceeded(
      "the daemon at %s waits for other processes of this host, or for other nodes of the job; its "
      "log and `bandoneon status` say for whom",
      options_.address);
}

void DaemonChannel::Join() {
  if (receiver_.joinable()) receiver_.join();
}

void DaemonChannel::Close() {
  {
    MutexLock lock(&mu_);
    if (is_closed_) return;
    is_closed_ = true;
  }
  // Waits end before the socket does: they end with Cancelled, not with the loss of the daemon.
  Fail(Cancelled("the worker is being closed"));
  shutdown(channel_.socket(), SHUT_RDWR);
  Wake();
}

void DaemonChannel::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void DaemonChannel::Send(const wire::ToDaemon& message) const {
  channel_.Send(message);
  if (channel_.has_waiting()) Wake();
}

// ---- The receiving thread

void DaemonChannel::Receive() {
  const FloatGuard guard;
  for (;;) {
    const short writable = channel_.has_waiting() ? POLLOUT : 0;
    pollfd fds[] = {{channel_.socket(), static_cast<short>(POLLIN | writable), 0},
                    {wake_.get(), POLLIN, 0}};
    if (poll(fds, 2, PollTimeoutMs()) < 0) continue;
    uint64_t woken;
    (void)!read(wake_.get(), &woken, sizeof(woken));
    {
      MutexLock lock(&mu_);
      // Close has ended everything.
      if (is_closed_) return;
    }
    // Before the lease is checked: if this process was held up, as in a debugger, the silence that
    // it has seen is no fault of the daemon.
    if (signs_.has_value()) lease_.WasHeldUp(signs_->OnAwake(clock_->Now()));
    absl::Status status;
    if (!channel_.Flush()) status = Unavailable("the connection has ended");
    if (fds[0].revents != 0) status = ReadMessages();
    if (!status.ok()) {
      return Fail(Lost(absl::StrFormat(
          "the daemon of this host, bandoneon-worker at %s, has gone (%s): the job is over for "
          "this process; see the daemon's log",
          options_.address, status.message())));
    }
    SayAlive();
    status = CheckDaemonsLease();
    if (!status.ok()) return Fail(status);
  }
}

absl::Status DaemonChannel::ReadMessages() {
  for (;;) {
    BDN_ASSIGN_OR_RETURN(const std::optional<std::string> bytes, channel_.Receive());
    if (!bytes.has_value()) return absl::OkStatus();
    lease_.Heard(clock_->Now());
    BDN_RETURN_IF_ERROR(OnMessage(*bytes));
    SayAlive();  // copying many results may take long
    // The time of handling a message is not a pause.
    if (signs_.has_value()) (void)signs_->OnAwake(clock_->Now());
  }
}

void DaemonChannel::SayAlive() {
  if (!signs_.has_value() || !signs_->IsDue(clock_->Now())) return;
  wire::ToDaemon message;
  message.mutable_alive();
  channel_.Send(message);
}

absl::Status DaemonChannel::CheckDaemonsLease() const {
  const absl::Time now = clock_->Now();
  if (!lease_.IsOver(now)) return absl::OkStatus();
  return Lost(absl::StrFormat(
      "the daemon of this host, bandoneon-worker at %s (process %d, of %s), stopped answering %.1f "
      "s ago: the job is over for this process; see the daemon's log",
      options_.address, channel_.peer_pid(), ranks_, absl::ToDoubleSeconds(lease_.SilentFor(now))));
}

absl::Status DaemonChannel::Lost(const std::string& text) const {
  return may_lose_hosts_ ? Evicted("%s", text) : Unavailable("%s", text);
}

int DaemonChannel::PollTimeoutMs() const {
  if (!signs_.has_value()) return -1;
  const absl::Duration left = std::min(signs_->NextTime(), lease_.end()) - clock_->Now();
  return static_cast<int>(absl::ToInt64Milliseconds(std::max(left, absl::ZeroDuration()))) + 1;
}

void DaemonChannel::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    // The first cause counts; a daemon that reports a failure also closes the connection.
    if (!over_.ok()) return;
    over_ = status;
    changed_.SignalAll();
  }
  if (handlers_.over) handlers_.over(status);
}

absl::Status DaemonChannel::OnMessage(const std::string& bytes) {
  wire::ToProcess message;
  if (!message.ParseFromString(bytes)) return InvalidArgument("a message that is none");
  switch (message.what_case()) {
    case wire::ToProcess::kWelcome:
      return OnWelcome(message.welcome());
    case wire::ToProcess::kSegment:
      return channel_.AddSegment(message.segment().index(), message.segment().bytes());
    case wire::ToProcess::kEnded:
      return handlers_.ended(message.ended());
    case wire::ToProcess::kAnswer:
      return handlers_.answer(std::move(*message.mutable_answer()));
    case wire::ToProcess::kFailed:
      Fail(Read(message.failed()));
      return absl::OkStatus();
    case wire::ToProcess::kAlive:
      return absl::OkStatus();
    case wire::ToProcess::kPresence:
      return OnPresence(message.presence());
    default:
      return InvalidArgument("a message of no known kind");
  }
}

absl::Status DaemonChannel::OnWelcome(const wire::Welcome& welcome) {
  if (welcome.has_refused()) {
    Fail(Read(welcome.refused()));
    return absl::OkStatus();
  }
  if (signs_.has_value()) return InvalidArgument("a second welcome");
  // A rank below 0 is refused by Read, because it is below the first that is present.
  if (welcome.size() > kMostRanks || welcome.rank() >= static_cast<int64_t>(welcome.size())) {
    return InvalidArgument("a welcome as worker %d of %d", welcome.rank(), welcome.size());
  }
  const int joined = static_cast<int>(welcome.size());
  // One that is not in the job yet is not among those who are present.
  const Rank own = welcome.is_candidate() && welcome.rank() >= 0 ? joined - 1 : welcome.rank();
  BDN_ASSIGN_OR_RETURN(const Presence presence, Read(welcome.presence(), own, joined));
  std::vector<int> processes(welcome.processes().begin(), welcome.processes().end());
  const int64_t all = std::accumulate(processes.begin(), processes.end(), int64_t{0});
  if (std::ranges::any_of(processes, [](int count) { return count < 1; }) || all != joined) {
    return InvalidArgument("a welcome to %d workers of %d processes in all, where there are %d",
                           processes.size(), all, joined);
  }
  const absl::Duration lease = absl::Milliseconds(welcome.lease_ms());
  // Lease and signs belong to this thread alone, so they need no lock.
  lease_.Begin(lease, clock_->Now());
  signs_.emplace(absl::Milliseconds(welcome.heartbeat_ms()), lease, clock_->Now());
  ranks_ = RanksOfWorker(welcome.rank() - static_cast<Rank>(welcome.local_rank()),
                         static_cast<int>(welcome.local_size()));
  may_lose_hosts_ = welcome.may_lose_hosts();
  MutexLock lock(&mu_);
  rank_ = welcome.rank();
  joined_size_ = joined;
  presence_ = presence;
  candidates_ = static_cast<int>(std::min(welcome.presence().candidates(), kMostRanks));
  is_candidate_ = welcome.is_candidate();
  processes_ = std::move(processes);
  run_seed_ = welcome.run_seed();
  is_welcome_ = true;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::Status DaemonChannel::OnPresence(const wire::Presence& message) {
  if (!signs_.has_value()) return InvalidArgument("a message of who is present before a welcome");
  BDN_ASSIGN_OR_RETURN(const Presence now,
                       Read(message, is_candidate() ? joined_size_ - 1 : rank_, joined_size_));
  candidates_ = static_cast<int>(std::min(message.candidates(), kMostRanks));
  const Presence before = presence_.exchange(now);
  if (now.size < before.size) {
    LogWarning("the job goes on with %d of %d workers", now.size, joined_size_);
  }
  return absl::OkStatus();
}

}  // namespace bdn
