#include "cli/peer_queue.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/rate_hello.h"
#include "cli/tcp_probe.h"
#include "common/certs/token_proof.h"

namespace bdn::cli {
namespace {

constexpr std::chrono::seconds kStrangersTime{10};
// A waiting peer gives up a listener that says nothing for 10 s.
constexpr std::chrono::seconds kReminder{2};
// The pause after an accept for which the system had no descriptor: the listener would be readable
// all the time.
constexpr std::chrono::seconds kNoDescriptor{1};

// Sends a few bytes to a peer that has read all bytes before them, so they fit at once; if they do
// not, the peer does not read.
bool SendNow(int fd, const std::string& bytes) {
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

bool IsReadable(int fd) {
  pollfd polled = {fd, POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace

PeerQueue::PeerQueue(int listener, std::string token,
                     std::function<void(const absl::Status&)> refused)
    : listener_(listener), token_(std::move(token)), refused_(std::move(refused)) {}

PeerQueue::~PeerQueue() {
  LookAround(std::chrono::milliseconds(0));
  for (const Waiting& waiting : waiting_) {
    SendNow(waiting.peer.fd, NoteBytes(Note::kEnded));
    close(waiting.peer.fd);
  }
  for (const Stranger& stranger : strangers_) close(stranger.peer.fd);
}

void PeerQueue::Tend() {
  LookAround(std::chrono::milliseconds(0));
  const auto now = SteadyClock::now();
  size_t before = 1;  // the one that is measured
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    const bool is_news = waiting->told != before || now - waiting->told_at >= kReminder;
    if (is_news && !SendNow(waiting->peer.fd, NoteBytes(Note::kWait, before))) {
      Refuse(waiting->peer, absl::UnavailableError("it left while it waited"));
      waiting = waiting_.erase(waiting);
      continue;
    }
    if (is_news) waiting->told_at = now;
    waiting->told = before++;
    ++waiting;
  }
}

absl::StatusOr<PeerQueue::Peer> PeerQueue::Next(std::chrono::milliseconds timeout) {
  const auto deadline = SteadyClock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now());
    // A second at most, so that strangers' time is looked at, too.
    const std::chrono::milliseconds most(waiting_.empty() ? 1000 : 0);
    LookAround(std::clamp(left, std::chrono::milliseconds(0), most));
    if (!waiting_.empty()) break;
    if (left <= std::chrono::milliseconds(0)) {
      return absl::DeadlineExceededError("nobody came: bandoneon doctor --peer measures with this");
    }
  }
  Peer peer = std::move(waiting_.front().peer);
  waiting_.pop_front();
  // The caller measures with calls that block; their timeouts are socket options.
  fcntl(peer.fd, F_SETFL, fcntl(peer.fd, F_GETFL) & ~O_NONBLOCK);
  return peer;
}

void PeerQueue::LookAround(std::chrono::milliseconds most) {
  std::vector<pollfd> polled;
  const bool accepts = SteadyClock::now() >= accepts_again_;
  if (accepts) polled.push_back({listener_, POLLIN, 0});
  // Waiting peers need no poll: while there are some, this does not wait.
  for (const Stranger& stranger : strangers_) polled.push_back({stranger.peer.fd, POLLIN, 0});
  poll(polled.data(), polled.size(), static_cast<int>(most.count()));
  const auto now = SteadyClock::now();
  if (accepts) Accept(now);
  for (auto stranger = strangers_.begin(); stranger != strangers_.end();) {
    const Progress progress = Hear(&*stranger, now);
    if (progress == Progress::kAdmitted) Admit(*stranger);
    stranger = progress == Progress::kNotYet ? stranger + 1 : strangers_.erase(stranger);
  }
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    waiting = HasLeft(*waiting) ? waiting_.erase(waiting) : waiting + 1;
  }
}

void PeerQueue::Accept(SteadyClock::time_point now) {
  for (;;) {
    SocketAddress address;
    address.size = sizeof(address.storage);
    const int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&address.storage), &address.size,
                           SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      refused_(absl::UnavailableError(absl::StrFormat("accept: %s", strerror(errno))));
      accepts_again_ = now + kNoDescriptor;
      return;
    }
    Peer peer{fd, address.ToString()};
    auto nonce = Nonce();
    if (!nonce.ok() || !SendNow(fd, std::string(kHello) + *nonce)) {
      Refuse(peer, nonce.ok() ? absl::UnavailableError("it went at once") : nonce.status());
      continue;
    }
    // The oldest goes, so that connections that say nothing cannot shut others out.
    if (strangers_.size() == kMostStrangers) {
      Refuse(strangers_.front().peer,
             absl::UnavailableError("it does not say its token, and others came"));
      strangers_.pop_front();
    }
    strangers_.push_back({std::move(peer), *std::move(nonce), "", now + kStrangersTime});
  }
}

PeerQueue::Progress PeerQueue::Hear(Stranger* stranger, SteadyClock::time_point now) {
  char bytes[kNonceBytes + kProofBytes];
  const size_t missing = sizeof(bytes) - stranger->received.size();
  const ssize_t size = recv(stranger->peer.fd, bytes, missing, MSG_DONTWAIT);
  if (size > 0) stranger->received.append(bytes, static_cast<size_t>(size));
  if (stranger->received.size() == sizeof(bytes)) return Progress::kAdmitted;
  const bool goes_on = size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
  if (goes_on && now < stranger->deadline) return Progress::kNotYet;
  Refuse(stranger->peer, absl::UnavailableError(goes_on ? "it did not show a token within 10 s"
                                                        : "it left before it was admitted"));
  return Progress::kGone;
}

void PeerQueue::Admit(const Stranger& stranger) {
  const std::string peers = stranger.received.substr(0, kNonceBytes);
  if (!SameProof(stranger.received.substr(kNonceBytes),
                 RateProof("peer", token_, stranger.nonce, peers))) {
    SendNow(stranger.peer.fd, std::string("n").append(kProofBytes, '\0'));
    Refuse(stranger.peer, absl::PermissionDeniedError("it has another token"));
    return;
  }
  SendNow(stranger.peer.fd,
          std::string("y").append(RateProof("listener", token_, stranger.nonce, peers)));
  // Only after the proofs: a peer without the token learns nothing of the queue.
  if (waiting_.size() == kMostWaiting) {
    SendNow(stranger.peer.fd, NoteBytes(Note::kFull, kMostWaiting));
    Refuse(stranger.peer,
           absl::ResourceExhaustedError(absl::StrFormat("%d wait already", kMostWaiting)));
    return;
  }
  waiting_.push_back({stranger.peer, 0, {}});
}

bool PeerQueue::HasLeft(const Waiting& waiting) {
  // Until its turn a peer has nothing to say: bytes to read are its end, or break the rules.
  if (!IsReadable(waiting.peer.fd)) return false;
  Refuse(waiting.peer, absl::UnavailableError("it left while it waited"));
  return true;
}

void PeerQueue::Refuse(const Peer& peer, const absl::Status& why) {
  close(peer.fd);
  refused_(absl::Status(why.code(),
                        absl::StrFormat("%s: %s", peer.address, std::string(why.message()))));
}

}  // namespace bdn::cli
