#ifndef BANDONEON_COMMON_CLUSTER_LISTENER_H_
#define BANDONEON_COMMON_CLUSTER_LISTENER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/cluster/newcomers.h"

namespace bdn {

// A TCP port, and a thread that takes its connections: gRPC's own gives up for good when the process
// has no descriptor free for one. This one tries again, so that connections wait in the kernel until
// one is. Thread-safe.
class Listener {
 public:
  // Listens at host:port; port 0 takes a free one. Errors as ListenError.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address);
  // As Close.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // Hands each connection over, as a descriptor that is the callback's from then on. Once. Where there are
  // `newcomers`, borrowed and possibly null, each is added to them before, and none is taken while they have
  // no room: connections wait in the kernel meanwhile.
  void Start(std::function<void(int fd)> on_connection, Newcomers* newcomers = nullptr);
  // Stops listening and waits for the last callback. Idempotent.
  void Close();

  // How often a connection could not be taken, and is waiting still or was taken later.
  uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }

 private:
  Listener(int fd, int stop_fd, int port) : fd_(fd), stop_fd_(stop_fd), port_(port) {}
  void Run();
  // False when it is closing.
  bool WaitUntilReady(bool for_connection, int timeout_ms) const;
  void WatchNewcomers();

  // Of lines that strangers cause.
  static constexpr absl::Duration kLogInterval = absl::Seconds(10);

  const int fd_;
  const int stop_fd_;  // an eventfd
  const int port_;
  const SteadyClock clock_;
  std::function<void(int fd)> on_connection_;
  Newcomers* newcomers_ = nullptr;
  LimitedLog log_{&clock_, kLogInterval};
  Newcomers::Counts told_;
  uint64_t trimmed_at_ = 0;
  absl::Time next_sweep_ = absl::InfinitePast();
  std::atomic<uint64_t> failures_{0};
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_LISTENER_H_
