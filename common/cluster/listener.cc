#include "common/cluster/listener.h"

#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"
#include "common/cluster/listen_address.h"

namespace bdn {
namespace {

// The time between two attempts at a connection for which there was no room.
constexpr int kRetryMs = 100;
// The time between two looks at newcomers, while there are any.
constexpr absl::Duration kSweepInterval = absl::Seconds(1);
// After so many connections have ended, their memory is given back to the system.
constexpr uint64_t kEndedUntilTrim = 256;

int PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

void SwitchOn(int fd, int level, int option) {
  const int on = 1;
  setsockopt(fd, level, option, &on, sizeof(on));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address) {
  BDN_ASSIGN_OR_RETURN(const int fd, OpenListeningSocket(address));
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) {
    close(fd);
    return ResourceExhausted("cannot listen at %s: %s", address, std::strerror(errno));
  }
  return std::unique_ptr<Listener>(new Listener(fd, stop_fd, PortOf(fd)));
}

Listener::~Listener() {
  Close();
  close(fd_);
  close(stop_fd_);
}

void Listener::Start(std::function<void(int fd)> on_connection, Newcomers* newcomers) {
  on_connection_ = std::move(on_connection);
  newcomers_ = newcomers;
  thread_ = StartThread("bdn-listener", [this] { Run(); });
}

void Listener::Close() {
  const uint64_t one = 1;
  (void)!write(stop_fd_, &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  // Stops listening: connections that still wait in the kernel are refused.
  shutdown(fd_, SHUT_RDWR);
}

bool Listener::WaitUntilReady(bool for_connection, int timeout_ms) const {
  pollfd fds[] = {{stop_fd_, POLLIN, 0}, {fd_, POLLIN, 0}};
  (void)poll(fds, for_connection ? 2 : 1, timeout_ms);
  return fds[0].revents == 0;
}

void Listener::WatchNewcomers() {
  if (clock_.Now() < next_sweep_) return;
  next_sweep_ = clock_.Now() + kSweepInterval;
  newcomers_->Sweep();
  const Newcomers::Counts now = newcomers_->counts();
  if (now.ended + now.cut - trimmed_at_ >= kEndedUntilTrim) {
    trimmed_at_ = now.ended + now.cut;
    malloc_trim(0);  // otherwise malloc keeps the memory of a wave of connections
  }
  uint64_t left_out;  // those are in the counts already
  if (now.ended + now.cut == told_.ended + told_.cut || !log_.MayLog(&left_out)) return;
  LogWarning(
      "%d connection(s) ended before a call of theirs was let in, and %d were cut to make room: "
      "they do not speak TLS as this job does, show no certificate of it, or are no nodes at all",
      now.ended - told_.ended, now.cut - told_.cut);
  told_ = now;
}

void Listener::Run() {
  bool is_starved = false;
  bool is_crowded = false;
  const auto timeout_ms = [&] {
    if (is_starved || is_crowded) return kRetryMs;
    return newcomers_ == nullptr || newcomers_->empty()
               ? -1
               : static_cast<int>(absl::ToInt64Milliseconds(kSweepInterval));
  };
  // Without room the port is not polled: it stays readable, and the thread would spin.
  while (WaitUntilReady(/*for_connection=*/!is_starved && !is_crowded, timeout_ms())) {
    if (newcomers_ != nullptr) {
      WatchNewcomers();
      is_crowded = !newcomers_->MakeRoom();
      if (is_crowded) continue;
    }
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      if (std::exchange(is_starved, false)) LogInfo("new connections are taken again");
      // Calls are small and are waited for: Nagle's delay would add to each.
      SwitchOn(fd, IPPROTO_TCP, TCP_NODELAY);
      if (newcomers_ != nullptr) newcomers_->Add(fd);
      on_connection_(fd);
      continue;
    }
    const int error = errno;
    // The peer has gone, or a signal has interrupted the call: neither is a lack of descriptors.
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) {
      is_starved = false;
      continue;
    }
    failures_.fetch_add(1, std::memory_order_relaxed);
    if (!std::exchange(is_starved, true)) {
      LogWarning(
          "no new connection can be taken: %s; they wait until one can. Raise the limit of "
          "open files (ulimit -n)",
          std::strerror(error));
    }
  }
}

}  // namespace bdn
