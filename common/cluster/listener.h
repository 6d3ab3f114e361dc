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

// A TCP port with a thread that accepts its connections. It stands in for gRPC's listener, which
// gives up for good when the process has no descriptor free for a connection: this one tries again,
// and connections wait in the kernel meanwhile. Thread-safe.
class Listener {
 public:
  // Listens at host:port; port 0 takes a free one. Errors are those of ListenError.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address);
  // As Close.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  // Starts to hand over each connection, as a descriptor that `on_connection` owns from then on. To
  // be called once. Where there are `newcomers` (borrowed, may be null), each connection is added
  // to them first, and none is accepted while they have no room: connections wait in the kernel
  // meanwhile.
  void Start(std::function<void(int fd)> on_connection, Newcomers* newcomers = nullptr);
  // Stops listening, and waits for the last callback. Idempotent.
  void Close();

  // Returns how often a connection could not be accepted, and waits still or was accepted later.
  uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }

 private:
  Listener(int fd, int stop_fd, int port) : fd_(fd), stop_fd_(stop_fd), port_(port) {}
  void Run();
  // Waits for the port, for Close, or for the time; returns false when it is closing.
  bool WaitUntilReady(bool for_connection, int timeout_ms) const;
  void WatchNewcomers();

  // The interval of log lines that strangers cause.
  static constexpr absl::Duration kLogInterval = absl::Seconds(10);

  const int fd_;
  const int stop_fd_;  // an eventfd
  const int port_;
  const SteadyClock clock_;
  // These are used by the thread alone; the first two are set before it starts.
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
