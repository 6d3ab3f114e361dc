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

// A queue of the peers that have come to be measured by `bandoneon doctor --listen`. One is
// measured at a time, as two would share the link; meanwhile the others show that they have the
// token, and are told how many are before them. A peer that does not show it within 10 s keeps
// nobody waiting, and is given up. Not thread-safe, and has no thread: the measuring caller calls
// Tend().
class PeerQueue {
 public:
  static constexpr size_t kMostWaiting = 256;   // a peer that comes then is told so, and refused
  static constexpr size_t kMostStrangers = 64;  // with one more the oldest is given up
  // A connection of a peer.
  struct Peer {
    int fd = -1;  // blocking; the caller closes it
    std::string address;
  };

  // Makes a queue for `listener`, a non-blocking socket, which outlives it. Tend() and Next() call
  // `refused` for each peer that is given up, with the reason.
  PeerQueue(int listener, std::string token, std::function<void(const absl::Status&)> refused);
  // Tells the peers that still wait that no other is measured.
  ~PeerQueue();
  PeerQueue(const PeerQueue&) = delete;
  PeerQueue& operator=(const PeerQueue&) = delete;

  // Does all that can be done without waiting. To be called some times a second.
  void Tend();
  // Returns the peer that came first of those with the token. DeadlineExceeded where none comes
  // within `timeout`, which may be 0.
  absl::StatusOr<Peer> Next(std::chrono::milliseconds timeout);

 private:
  using SteadyClock = std::chrono::steady_clock;
  // A peer that has not yet shown the token.
  struct Stranger {
    Peer peer;
    std::string nonce;     // ours
    std::string received;  // of its nonce and its proof
    SteadyClock::time_point deadline;
  };
  // A peer that waits for its turn.
  struct Waiting {
    Peer peer;
    size_t told = 0;  // how many are before it; 0: not told yet
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
