#ifndef BANDONEON_CLI_PEER_QUEUE_H_
#define BANDONEON_CLI_PEER_QUEUE_H_

#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bdn::cli {

// Who has come to be measured by `bandoneon doctor --listen`. One is measured at a time, as two would share the link; the
// others show meanwhile that they have the token, and are told how many are before them. Who does not show it within 10 s
// keeps nobody waiting, and is given up. Not thread-safe, and has no thread: whoever measures calls Tend().
class PeerQueue {
 public:
  static constexpr size_t kMostWaiting = 256;   // who comes then is told so, and sent away
  static constexpr size_t kMostStrangers = 64;  // with one more the oldest of them is given up
  struct Peer {
    int fd = -1;  // blocking; the caller closes it
    std::string address;
  };

  // `listener`, a non-blocking socket, outlives it. `refused` hears who was given up, and why, from inside of Tend() and Next().
  PeerQueue(int listener, std::string token, std::function<void(const absl::Status&)> refused);
  // Tells who still waits that nobody else is measured.
  ~PeerQueue();
  PeerQueue(const PeerQueue&) = delete;
  PeerQueue& operator=(const PeerQueue&) = delete;

  // Goes on with all that can be done without waiting. To be called some times a second.
  void Tend();
  // Who came first of those with the token. DeadlineExceeded where nobody is there in `timeout`, which may be 0.
  absl::StatusOr<Peer> Next(std::chrono::milliseconds timeout);

 private:
  using SteadyClock = std::chrono::steady_clock;
  // Has not shown the token yet.
  struct Stranger {
    Peer peer;
    std::string nonce;     // ours
    std::string received;  // of its own and its proof
    SteadyClock::time_point deadline;
  };
  struct Waiting {
    Peer peer;
    size_t told = 0;  // how many are before it; 0: nothing yet
    SteadyClock::time_point told_at;
  };
  enum class Progress { kAdmitted, kNotYet, kGone };

  void LookAround(std::chrono::milliseconds most);
  void Accept(SteadyClock::time_point now);
  Progress Hear(Stranger* stranger, SteadyClock::time_point now);
  void Admit(const Stranger& stranger);
  bool HasLeft(const Waiting& waiting);
  void Refuse(const Peer& peer, const absl::Status& why);

  const int listener_;
  const std::string token_;
  const std::function<void(const absl::Status&)> refused_;
  std::deque<Stranger> strangers_;  // the oldest first
  std::deque<Waiting> waiting_;     // the next first
  SteadyClock::time_point accepts_again_{};
};

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_PEER_QUEUE_H_
