#ifndef BANDONEON_COMMON_BASE_SUPERVISOR_H_
#define BANDONEON_COMMON_BASE_SUPERVISOR_H_

#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace bdn {

// Tells who supervises this process what it does: the protocol of sd_notify(3), as systemd has it for
// Type=notify, one datagram a message. Nothing is said where nobody listens, and nothing waits.
// Thread-safe.
class Supervisor {
 public:
  struct Variables {
    std::string notify_socket;  // NOTIFY_SOCKET: /path or @name; empty: nobody listens
    std::string watchdog_usec;  // WATCHDOG_USEC
    std::string watchdog_pid;   // WATCHDOG_PID: whose watchdog it is; empty: this process's
  };
  static Variables FromEnvironment();

  // Logs a warning about variables that mean nothing, and goes without them.
  explicit Supervisor(const Variables& variables);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void Ready() const { Send("READY=1"); }
  void Stopping() const { Send("STOPPING=1"); }
  void Alive() const { Send("WATCHDOG=1"); }
  // One line for people, as `systemctl status` shows it.
  void Status(std::string_view text) const;

  // How often Alive is to be called: half of what the supervisor waits; infinite where it does not.
  absl::Duration alive_interval() const { return alive_interval_; }

 private:
  void Send(std::string_view message) const;

  int fd_ = -1;  // connected; -1: nobody listens
  absl::Duration alive_interval_ = absl::InfiniteDuration();
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_BASE_SUPERVISOR_H_
