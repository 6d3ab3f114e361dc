#ifndef BANDONEON_COMMON_BASE_SUPERVISOR_H_
#define BANDONEON_COMMON_BASE_SUPERVISOR_H_

#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace bdn {

// A link to the supervisor of this process, by which it tells what it does: the protocol of
// sd_notify(3), as systemd has it for Type=notify, one datagram a message. It sends nothing where
// no supervisor listens, and never waits. Thread-safe.
class Supervisor {
 public:
  // The variables of the environment by which a supervisor says where and how it listens.
  struct Variables {
    std::string notify_socket;  // NOTIFY_SOCKET: /path or @name; empty: no supervisor listens
    std::string watchdog_usec;  // WATCHDOG_USEC
    // WATCHDOG_PID: the process whose watchdog it is; empty: this process.
    std::string watchdog_pid;
  };
  static Variables FromEnvironment();

  // Logs a warning about variables that mean nothing, and goes on without them.
  explicit Supervisor(const Variables& variables);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void Ready() const { Send("READY=1"); }
  void Stopping() const { Send("STOPPING=1"); }
  void Alive() const { Send("WATCHDOG=1"); }
  // Sends one line for people, as `systemctl status` shows it.
  void Status(std::string_view text) const;

  // Returns the interval at which Alive is to be called: half of the time that the supervisor
  // waits; infinite where it waits for nothing.
  absl::Duration alive_interval() const { return alive_interval_; }

 private:
  void Send(std::string_view message) const;

  int fd_ = -1;  // a connected socket; -1: no supervisor listens
  absl::Duration alive_interval_ = absl::InfiniteDuration();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_SUPERVISOR_H_
